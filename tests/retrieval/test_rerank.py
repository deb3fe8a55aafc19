from __future__ import annotations

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.rerank import LexicalReranker
from tests.builders import passage

THESAURUS = {"headquarters": ["main", "office", "near"]}


async def ranked(reranker: LexicalReranker, query: str, *texts: str, top_k: int = 9) -> list[tuple[str, float | None]]:
    passages = [passage(str(i), text, score=float(i)) for i, text in enumerate(texts)]
    return [(p.text, p.score) for p in await reranker.rerank(query, passages, top_k=top_k)]


async def test_a_passage_that_says_it_in_other_words_beats_one_that_drops_the_word() -> None:
    tours, office = "Tours of the Velmor headquarters are popular.", "The main office of Velmor is near Roka."
    chief, other = "The main chief of Velmor is Tam.", "The main office of Castin is near Roka."
    # weights: headquarters 1, Velmor 2. tours (1/2 + 2)/3, office (3/3 + 2)/3, chief (1/3 + 2)/3, other (3/3 + 0)/3
    assert await ranked(LexicalReranker(thesaurus=THESAURUS), "headquarters Velmor", tours, chief, other, office) == [
        (office, 1.0),
        (tours, 0.833333),
        (chief, 0.777778),
        (other, 0.333333),
    ]


async def test_without_a_thesaurus_words_are_what_they_are() -> None:
    # weights: founder 1, Velmor 2; "who", "the" and "of" ask for nothing
    assert await ranked(
        LexicalReranker(), "Who the founder of Velmor", "Who, of the?", "A founder.", "velmor", "Velmor's founder"
    ) == [("Velmor's founder", 1.0), ("velmor", 0.666667), ("A founder.", 0.333333), ("Who, of the?", 0.0)]


async def test_equal_scores_keep_their_order_and_the_cut_is_top_k() -> None:
    reranker = LexicalReranker()
    assert await ranked(reranker, "tea", "b tea", "no", "a tea", "c tea", top_k=2) == [("b tea", 1.0), ("a tea", 1.0)]
    assert await reranker.rerank("tea", [], top_k=2) == []


async def test_the_query_may_be_anything() -> None:
    assert await ranked(LexicalReranker(), "", "x", "y") == [("x", 0.0), ("y", 0.0)]
    assert await ranked(LexicalReranker(), "who is", "x", "who") == [("who", 0.5), ("x", 0.0)]
    assert await ranked(LexicalReranker(), "tea Tea tea", "x", "tea") == [("tea", 1.0), ("x", 0.0)]


async def test_titles_count_as_text_and_everything_but_the_score_is_kept() -> None:
    given = Passage(id="a", text="It sells tea.", title="Velmor", url="u", score=3.0)
    assert await LexicalReranker().rerank("tea Velmor", [given], top_k=1) == [
        Passage(id="a", text="It sells tea.", title="Velmor", url="u", score=1.0)
    ]


async def test_phrases_count_as_their_words_and_weights_can_be_levelled() -> None:
    reranker = LexicalReranker(thesaurus={"Born": ["native of", "BIRTHPLACE"]}, name_weight=1.0)
    # born: 2 of native, of, birthplace -> 2/3; Tam 1
    assert await ranked(reranker, "born Tam", "Tam is a native of Roka.") == [("Tam is a native of Roka.", 0.833333)]


def test_entries_that_are_no_lists_of_words_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"entry 'a': 'b'; allowed is a list of words"):
        LexicalReranker(thesaurus={"a": "b"})
    with pytest.raises(ConfigError, match="entry 'a': no words"):
        LexicalReranker(thesaurus={"a": []})
    with pytest.raises(ConfigError, match="name_weight=0"):
        LexicalReranker(name_weight=0)
