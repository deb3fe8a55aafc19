"""Search in memories: scores computed by hand, two layers, what is newest, what matches nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.environments.memory.base import MemorySearch
from agentgrpo.environments.memory.search import Bm25, LayeredSearch, bm25, embedding, hybrid
from agentgrpo.retrieval.embedder import HashingEmbedder, Vectors


def entries(*texts: str, kind: str = "semantic") -> list[Passage]:
    return [Passage(id=f"{kind}-{i}", text=text, title=kind) for i, text in enumerate(texts)]


def found(
    search: MemorySearch, documents: Sequence[Passage], query: str, top_k: int = 10
) -> list[tuple[str, float | None]]:
    return [(p.id, p.score) for p in search.over(documents).search(query, top_k=top_k)]


CATS = entries("the cat sat", "the dog sat down here", "cat cat")
IDF_CAT = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # in 2 of 3 texts


def hand(idf: float, tf: int, length: int, mean: float, k1: float = 1.5, b: float = 0.75) -> float:
    return round(idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean)), 9)


def test_scores_are_those_computed_by_hand() -> None:
    mean = 10 / 3
    assert found(bm25(), CATS, "Cat?") == [
        ("semantic-2", hand(IDF_CAT, 2, 2, mean)),
        ("semantic-0", hand(IDF_CAT, 1, 3, mean)),
    ]
    # 0.470003629 * 2 * 2.5 / (2 + 1.5 * (0.25 + 0.75 * 0.6)) = 0.770497753
    assert found(bm25(), CATS, "cat")[0] == ("semantic-2", 0.770497753)


def test_words_add_up_and_a_word_counts_once_in_a_query() -> None:
    mean, idf_sat = 10 / 3, IDF_CAT
    both = round(hand(IDF_CAT, 1, 3, mean) + hand(idf_sat, 1, 3, mean), 9)
    assert dict(found(bm25(), CATS, "sat cat sat"))["semantic-0"] == pytest.approx(both, abs=2e-9)
    assert found(bm25(), CATS, "sat cat sat") == found(bm25(), CATS, "cat sat")


def test_k1_and_b_can_be_set() -> None:
    mean = 10 / 3
    assert found(bm25(k1=0.5, b=0.0), CATS, "cat") == [
        ("semantic-2", hand(IDF_CAT, 2, 2, mean, 0.5, 0.0)),
        ("semantic-0", hand(IDF_CAT, 1, 3, mean, 0.5, 0.0)),
    ]
    assert [s for _, s in found(bm25(k1=0.0), CATS, "cat")] == [round(IDF_CAT, 9)] * 2


def test_of_equal_scores_the_newest_and_at_most_top_k() -> None:
    documents = entries("cat one", "cat two", "cat six")
    assert [i for i, _ in found(bm25(), documents, "cat")] == ["semantic-2", "semantic-1", "semantic-0"]
    assert [i for i, _ in found(bm25(), documents, "cat", top_k=2)] == ["semantic-2", "semantic-1"]
    assert found(bm25(), documents, "cat", top_k=0) == []


@pytest.mark.parametrize("query", ["dog", "", "?!", "___"])
def test_what_shares_nothing_is_left_out(query: str) -> None:
    assert found(bm25(), entries("cat one", "cat two"), query) == []


def test_no_documents() -> None:
    assert found(bm25(), [], "cat") == [] == found(hybrid(), [], "cat") == found(embedding(), [], "cat")
    assert found(bm25(), entries("", "?"), "cat") == []


def kinds(**texts: Sequence[str]) -> list[Passage]:
    return [p for kind, held in texts.items() for p in entries(*held, kind=kind)]


def test_only_entries_of_the_best_kinds_are_found() -> None:
    documents = kinds(a=["cat", "cat"], b=["cat dog x"], c=["cat dog dog y z"], d=["cat u v w x y z u v w"])
    search = bm25(top_kinds=2)
    assert {i for i, _ in found(search, documents, "cat")} == {"a-0", "a-1", "b-0"}
    assert {i for i, _ in found(bm25(), documents, "cat")} == {"a-0", "a-1", "b-0", "c-0"}


def test_at_most_top_entries_of_a_kind_merged_by_score() -> None:
    documents = kinds(a=["cat"] * 7, b=["cat dog x"])
    ids = [i for i, _ in found(bm25(), documents, "cat")]
    assert ids == ["a-6", "a-5", "a-4", "a-3", "a-2", "b-0"]
    scores = [s for _, s in found(bm25(), documents, "cat")]
    assert scores[:5] == [scores[0]] * 5
    assert scores[4] > scores[5] > 0  # type: ignore[operator]
    assert [i for i, _ in found(bm25(top_entries=1), documents, "cat")] == ["a-6", "b-0"]


def test_scores_of_two_layers_are_those_of_one_collection() -> None:
    texts = ("the cat sat", "the dog sat down here", "cat cat")
    two = kinds(a=texts[:2], b=texts[2:])
    assert [s for _, s in found(bm25(), two, "cat")] == [s for _, s in found(bm25(), entries(*texts), "cat")]


def test_one_kind_and_raw_chunks_skip_the_first_layer() -> None:
    documents = entries(*["cat"] * 8)
    raw = [Passage(id=str(i), text="cat") for i in range(8)]
    assert len(found(bm25(), documents, "cat")) == len(found(bm25(), raw, "cat")) == 8


def test_a_kind_is_its_first_ten_entries() -> None:
    documents = kinds(a=["dog"] * 10 + ["cat"], b=["bird"])
    assert found(bm25(), documents, "cat") == []  # the eleventh does not speak for its kind
    assert [i for i, _ in found(bm25(), documents[1:], "cat")] == ["a-10"]


def test_a_kind_is_found_by_its_name_and_description_but_its_entries_by_their_own_words() -> None:
    documents = kinds(work_life=["sells cars", *["x"] * 10, "life in cars"], home=["sells cars"])
    assert found(bm25(), kinds(work_life=["x"], home=["y"]), "work") == []  # a kind without an entry that matches
    named = [i for i, _ in found(bm25(top_kinds=1), documents, "life cars")]
    assert named == ["work_life-11", "work_life-0"]
    described = LayeredSearch(Bm25(), top_kinds=1, descriptions={"home": "family, garden, life"})
    assert found(described, kinds(a=["cars"], home=["cars"]), "garden cars") == [
        ("home-0", found(bm25(), kinds(a=["cars"], home=["cars"]), "cars")[0][1])
    ]


VECTORS = {"east": (1.0, 0.0), "north": (0.0, 1.0), "between": (0.6, 0.8), "west": (-1.0, 0.0)}


class Axes:
    """Directions chosen by hand."""

    dim = 2
    identity = "axes"

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.array([VECTORS[text] for text in texts], np.float32)


def test_hybrid_and_embedding_scores_are_those_computed_by_hand() -> None:
    documents = entries("east", "north", "between", "west")
    assert found(embedding(embedder=Axes()), documents, "east") == [
        ("semantic-0", 1.0),
        ("semantic-2", pytest.approx(0.6)),
    ]
    words = hand(math.log(1 + 3.5 / 1.5), 1, 1, 1.0)
    assert found(hybrid(embedder=Axes()), documents, "east") == [
        ("semantic-0", pytest.approx(0.5 * words / 10 + 0.5)),
        ("semantic-2", pytest.approx(0.3)),
    ]
    assert found(hybrid(embedder=Axes(), weight=0.0), documents, "east") == [("semantic-0", pytest.approx(words / 10))]


def test_many_words_count_at_most_as_much_as_a_full_cosine() -> None:
    query = " ".join(f"w{i}" for i in range(40))
    documents = entries(query, "other", "another")
    assert found(bm25(), documents, query)[0][1] > 10  # type: ignore[operator]
    assert found(hybrid(weight=0.25), documents, query)[0] == ("semantic-0", pytest.approx(1.0))


def test_the_hashing_embedder_finds_a_word_in_another_form() -> None:
    documents = entries("She founded the company", "Tea is served at five")
    assert found(bm25(), documents, "founder") == []
    assert found(embedding(), documents, "founder")[0][0] == "semantic-0"
    assert found(hybrid(), documents, "founder")[0][0] == "semantic-0"


def test_an_index_follows_every_edit() -> None:
    search, documents = bm25(), entries("cat one", "dog two")
    before = search.over(documents)
    documents[0] = Passage(id="semantic-0", text="bird one", title="semantic")
    assert [p.text for p in search.over(documents).search("bird", top_k=5)] == ["bird one"]
    assert search.over(documents).search("cat", top_k=5) == []
    assert [p.id for p in before.search("cat", top_k=5)] == ["semantic-0"]


def test_every_setting_is_part_of_the_identity() -> None:
    searches = [
        *(bm25(), bm25(k1=1.0), bm25(b=0.5), bm25(top_kinds=1), bm25(top_entries=1), LayeredSearch(Bm25())),
        *(embedding(), embedding(embedder=Axes()), hybrid(), hybrid(weight=0.1), hybrid(k1=1.0), hybrid(b=0.1)),
    ]
    assert len({search.identity for search in searches}) == len(searches)
    assert bm25().identity == bm25().identity


@pytest.mark.parametrize(
    "node",
    [
        {"name": "bm25", "k1": -1.0},
        {"name": "bm25", "b": 1.5},
        {"name": "bm25", "top_kinds": 0},
        {"name": "hybrid", "top_entries": 0},
        {"name": "hybrid", "weight": 2.0},
        {"name": "embedding", "embedder": {"name": "hashing", "dim": 7}},
        {"name": "bm25", "embedder": {"name": "hashing"}},
    ],
)
def test_what_makes_no_sense_is_refused(node: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build_node("memory_search", node)


def test_the_kinds_of_every_schema_are_described() -> None:
    documents = kinds(cognition_work=["Velmor codes"], resource_economic=["Velmor pays"])
    assert found(bm25(top_kinds=1), documents, "Velmor spending")[0][0] == "resource_economic-0"
    assert found(bm25(top_kinds=1), documents, "Velmor skills")[0][0] == "cognition_work-0"


def test_configurations_build() -> None:
    nodes = [{"name": "bm25"}, {"name": "embedding"}, {"name": "hybrid", "embedder": {"name": "hashing", "dim": 64}}]
    assert [build_node("memory_search", node).identity for node in nodes] == [
        bm25().identity,
        embedding().identity,
        hybrid(embedder=HashingEmbedder(dim=64)).identity,
    ]
