"""Dense, BM25 and fused search: what they find, in which order, and that no row depends on its batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import ConfigError, DataError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Backend
from agentgrpo.retrieval.bm25 import Bm25Backend
from agentgrpo.retrieval.corpus import best_passages, searchable_text
from agentgrpo.retrieval.dense import DenseBackend
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.fused import FusedBackend
from tests.builders import passage

COMPANIES = ("Velmor", "Castin", "Roka", "Bilsir", "Zolpel", "Grolgrok", "Maspel", "Klomger")
PASSAGES = [
    passage(f"{kind}-{name.lower()}", text.format(name))
    for name in COMPANIES
    for kind, text in (
        ("founder", "{} was founded by Tam."),
        ("office", "The main office of {} is near Zir."),
        ("tours", "Tours of the {} headquarters are popular."),
    )
]


def dense(passages: Sequence[Passage] = PASSAGES, dim: int = 512) -> DenseBackend:
    return DenseBackend(passages, embedder=HashingEmbedder(dim=dim, texts=map(searchable_text, passages)))


def found(backend: Backend, query: str, top_k: int) -> list[str]:
    [row] = backend.search_batch([query], top_k)
    assert not isinstance(row, RetrieverError)
    return [p.id for p in row]


class Listed:
    """A backend that answers every query with the passages of these ids."""

    def __init__(self, ids: str | RetrieverError) -> None:
        self.ids = ids

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        if isinstance(self.ids, RetrieverError):
            return [self.ids for _ in queries]
        return [[passage(id, f"text {id}", score=9.0) for id in self.ids[:top_k]] for _ in queries]


@pytest.mark.parametrize("backend", [dense(), Bm25Backend(PASSAGES), FusedBackend([dense(), Bm25Backend(PASSAGES)])])
def test_every_backend_finds_the_passage_that_was_asked_for(backend: Backend) -> None:
    for name in COMPANIES:
        assert found(backend, f"founded {name}", 1) == [f"founder-{name.lower()}"]
        assert found(backend, f"headquarters {name}", 3)[0] == f"tours-{name.lower()}"


def test_dense_search_understands_inflections_that_share_no_word() -> None:
    assert found(dense(), "founders Velmor", 1) == ["founder-velmor"]


@pytest.mark.parametrize("backend", [dense(), Bm25Backend(PASSAGES), FusedBackend([dense(), Bm25Backend(PASSAGES)])])
def test_no_row_depends_on_its_batch(backend: Backend) -> None:
    queries = [f"{word} {name}" for name in COMPANIES for word in ("founded", "headquarters", "main office", "Tam", "")]
    queries += [f"the {q}" for q in queries]
    alone = [backend.search_batch([query], 5)[0] for query in queries]
    for size in range(1, 65):
        start = size % 16
        assert backend.search_batch(queries[start : start + size], 5) == alone[start : start + size]


@pytest.mark.parametrize("make", [dense, Bm25Backend])
def test_equal_scores_keep_the_order_of_the_passages_whatever_the_cut(make: type[Bm25Backend]) -> None:
    twins = [passage(f"p{i:03}", "Velmor sells tea." if i % 2 else "Nothing of the kind.") for i in range(400)]
    backend = make(twins)
    expected = [f"p{i:03}" for i in range(1, 400, 2)]
    for top_k in (1, 2, 10, 150, 200):
        assert found(backend, "tea Velmor", top_k) == expected[:top_k]


@pytest.mark.parametrize("top_k", [1, 3, 9, 10, 11, 50, 100, 120])
def test_ties_at_the_cut_are_broken_by_the_order_of_the_passages_not_of_the_index(top_k: int) -> None:
    # 10 good passages, then 90 that are equal up to float noise; the index lists equals backwards.
    scores = [2.0] * 10 + [1.0 + 1e-9 * (i % 7) for i in range(90)]
    listed = sorted(range(100), key=lambda i: (-scores[i], -i))
    passages = [passage(str(i), "x") for i in range(100)]
    best = best_passages(passages, lambda n: ([scores[i] for i in listed[:n]], listed[:n]), top_k)
    assert [(p.id, p.score) for p in best] == [(str(i), 2.0 if i < 10 else 1.0) for i in range(100)][:top_k]


def test_scores_are_what_the_formulas_say() -> None:
    texts = ["ant bee", "ant ant cow dog", "bee"]
    passages = [passage(str(i), text) for i, text in enumerate(texts)]
    [row] = Bm25Backend(passages, stemmer=None).search_batch(["ant"], 5)

    def bm25(tf: int, length: int) -> float:
        idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
        return idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / (7 / 3)))

    assert not isinstance(row, RetrieverError)
    assert [(p.id, p.text) for p in row] == [("1", texts[1]), ("0", texts[0])]
    assert [p.score for p in row] == [pytest.approx(bm25(2, 4), rel=1e-5), pytest.approx(bm25(1, 2), rel=1e-5)]

    embedder = HashingEmbedder(texts=texts)
    [row] = DenseBackend(passages, embedder=embedder).search_batch(["bee"], 5)
    assert not isinstance(row, RetrieverError)
    query, *vectors = embedder.embed(["bee", *texts])
    assert [(p.id, p.score) for p in row][:2] == [("2", 1.0), ("0", pytest.approx(float(query @ vectors[0]), rel=1e-5))]


@pytest.mark.parametrize("query", ["", "   ", "?!", "\x00", "\ud800"])
def test_a_query_without_words_finds_nothing(query: str) -> None:
    assert found(Bm25Backend(PASSAGES), query, 5) == []
    assert found(dense(), query, 5) == []


@pytest.mark.parametrize(
    "query",
    ["Velmor AND Castin", '"main office', "text:Velmor", "velmor*", "-velmor +roka^2 [a TO b] \\", "of\nVelmor"],
)
def test_bm25_knows_no_query_language(query: str) -> None:
    assert any("velmor" in id or "office" in id for id in found(Bm25Backend(PASSAGES), query, 3))


def test_bm25_finds_nothing_where_no_word_is_shared() -> None:
    assert found(Bm25Backend(PASSAGES), "zzz unheard", 5) == []


def test_bm25_stems_in_the_given_language_only() -> None:
    passages = [passage("a", "Die Häuser"), passage("b", "one tour")]
    assert found(Bm25Backend(passages, stemmer="german"), "haus", 5) == ["a"]
    assert found(Bm25Backend(passages), "tours", 5) == ["b"]
    assert found(Bm25Backend(passages, stemmer=None), "tours", 5) == []
    with pytest.raises(ConfigError, match="stemmer='klingon'"):
        Bm25Backend(passages, stemmer="klingon")


def test_titles_are_searched_too() -> None:
    passages = [passage("a", "It sells tea.", title="Velmor"), passage("b", "It sells tea.", title="Castin")]
    assert found(Bm25Backend(passages), "Castin", 5) == ["b"]
    assert found(dense(passages), "Castin", 1) == ["b"]


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no passages"):
        Bm25Backend([])
    with pytest.raises(DataError, match="no passages"):
        dense([])


def test_reciprocal_rank_fusion_by_hand() -> None:
    # a: 1/61 + 1/63; b: 1/62 + 1/61; c: 1/63; d: 1/62
    fused = FusedBackend([Listed("abc"), Listed("bda")])
    [row] = fused.search_batch(["q"], 5)
    assert not isinstance(row, RetrieverError)
    assert [(p.id, p.text, p.score) for p in row] == [
        ("b", "text b", 0.0325225),
        ("a", "text a", 0.0322665),
        ("d", "text d", 0.016129),
        ("c", "text c", 0.015873),
    ]
    assert found(fused, "q", 2) == ["b", "a"]
    assert found(FusedBackend([Listed("ab"), Listed("ba")]), "q", 2) == ["a", "b"]  # a tie: the first backend's order
    # c: 1/63 + 1/61 beats b: 2/62 and a: 1/61, but only where the backends are asked for more than top_k
    assert found(FusedBackend([Listed("abc"), Listed("cb")]), "q", 1) == ["c"]
    assert found(FusedBackend([Listed("abc"), Listed("cb")], depth=1), "q", 1) == ["a"]
    assert found(FusedBackend([Listed("abcd"), Listed("d")], k=0), "q", 4) == ["d", "a", "b", "c"]


def test_a_row_that_one_backend_could_not_answer_has_failed() -> None:
    error = RetrieverError("down", kind="transport")
    assert FusedBackend([Listed("ab"), Listed(error)]).search_batch(["q", "r"], 2) == [error, error]


def test_a_fusion_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="fusion of 0 backends"):
        FusedBackend([])
