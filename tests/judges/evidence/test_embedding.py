"""The embedding judge: other words for those of the question, on one scale for all embedders."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.judges.base import QueryResults
from agentgrpo.judges.evidence.alike import UNLIKE, Alikeness
from agentgrpo.judges.evidence.embedding import EmbeddingEvidence
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.retrieval.embedder import HashingEmbedder, Vectors
from tests.builders import passage, task
from tests.judges.evidence.test_lexical import CHATTER, CORPUS, FOUNDED, OFFICE

SAME: Mapping[str, str] = {"main office": "headquartered", "founder": "founded", "birth": "born"}


class Meanings:
    """Texts of one meaning point the same way, others nowhere near; `tilt` is what all have in common, as with models
    whose cosines are never near 0."""

    dim = 512

    def __init__(self, tilt: float = 0.0) -> None:
        self.asked: list[str] = []
        self._tilt, self._hashed = tilt, HashingEmbedder(dim=504)

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        own = self._hashed.embed([SAME.get(text, text) for text in texts])
        vectors = np.concatenate([own, np.full((len(texts), 8), self._tilt, np.float32)], axis=1)
        return vectors / np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))


def judge(embedder: Any = None, **options: Any) -> EmbeddingEvidence:
    return EmbeddingEvidence(embedder=embedder or Meanings(), **{"corpora": {"vdb": CORPUS}, **options})


async def score(of: EmbeddingEvidence, question: str, *seen: Any) -> float:
    return (await of.judge_round(task(question=question), [], seen)).score


@pytest.mark.parametrize("tilt", [0.0, 0.5])
async def test_what_means_a_word_of_the_question_covers_it(tilt: float) -> None:
    question = "Where is Velmor headquartered?"
    lexical = LexicalEvidence(corpora={"vdb": CORPUS}).judge_round(task(question=question), [], [OFFICE])
    assert not lexical.sufficient
    of = judge(Meanings(tilt))
    assert (await of.judge_round(task(question=question), [], [OFFICE])).sufficient
    assert await score(of, question, FOUNDED) < 0.9
    assert await score(of, question, CHATTER) < 0.9  # nothing new, so no answer


async def test_it_never_thinks_less_than_the_lexical_judge() -> None:
    lexical, of = LexicalEvidence(corpora={"vdb": CORPUS}), judge()
    for question in ("Who founded Velmor?", "Where was the founder of Velmor born?", "Tours of what?", "Who?"):
        for seen in ([FOUNDED], [CHATTER, OFFICE], CORPUS):
            assert await score(of, question, *seen) >= lexical.judge_round(task(question=question), [], seen).score


async def test_names_and_numbers_mean_themselves_alone() -> None:
    embedder = Meanings()
    of = judge(embedder, corpora=None)
    await of.judge_round(task(question="Who founded Velmor in 1984?"), [], [passage("x", "In 1990 Castin made Roka.")])
    assert not {"Velmor", "velmor", "1984", "1990", "castin", "roka"} & {*embedder.asked}
    assert {"founded", "made"} <= {*embedder.asked}


async def test_a_word_of_a_passage_says_one_word_of_the_question() -> None:
    class Alike(Meanings):
        """Whatever is no control word is one thing."""

        def embed(self, texts: Sequence[str]) -> Vectors:
            return super().embed([text if text in UNLIKE else "thing" for text in texts])

    of = judge(Alike(), corpora=None, min_rarity=0.1)
    question = "Where was the founder of Velmor born?"
    one = await score(of, question, passage("x", "Velmor by Castin created."))
    two = await score(of, question, passage("x", "Velmor by Castin created here nearby at home."))
    founder, born = (1 + 7 / 12) / 2, (1 + 4 / 12) / 2
    assert one == pytest.approx((1 + founder) / (1 + founder + born), abs=1e-4)
    assert two == pytest.approx(1.0, abs=1e-4)


async def test_queries_are_graded_by_their_own_passages() -> None:
    results = [QueryResults(query="Velmor headquartered", passages=(OFFICE,)), QueryResults(query="born", passages=())]
    graded = await judge().judge_round(task(question="Where is Velmor headquartered?"), results, [OFFICE])
    assert (graded.sufficient, graded.num_sufficient_queries) == (True, 1)


async def test_episodes_that_run_at_once_are_judged_as_one_by_one() -> None:
    questions = [f"Where is {name} headquartered and who founded {name}?" for name in ("Velmor", "Ulm", "Ost", "Pell")]
    one_by_one = [await score(judge(), question, *CORPUS) for question in questions]
    of = judge()
    assert await asyncio.gather(*(score(of, question, *CORPUS) for question in questions * 5)) == one_by_one * 5


def test_cosines_of_different_embedders_come_to_one_scale() -> None:
    words, phrases = ["headquartered", "born"], ["main office", "garden"]
    plain, tilted = Meanings(), Meanings(0.5)
    cosines = [float((e.embed(["born"]) @ e.embed(["garden"]).T)[0, 0]) for e in (plain, tilted)]
    assert cosines[1] > 0.6 > 0.2 > cosines[0]
    for embedder in (plain, tilted):
        shares = Alikeness(embedder)(words, phrases)
        assert shares.shape == (2, 2)
        assert shares[0, 0] > 0.99
        assert shares[[0, 1, 1], [1, 0, 1]].max() < 0.3


def test_the_scale_is_found_with_unlike_words_and_can_be_given() -> None:
    pairs = HashingEmbedder().embed(UNLIKE) @ HashingEmbedder().embed(UNLIKE).T
    cosines = pairs[np.triu_indices(len(UNLIKE), 1)]
    midpoint, slope = cosines.mean() + 1.75 * cosines.std(), 2 / cosines.std()
    assert Alikeness(HashingEmbedder()).curve == pytest.approx((midpoint, slope), rel=1e-4)
    assert Alikeness(HashingEmbedder(), midpoint=0.3).curve == pytest.approx((0.3, slope), rel=1e-4)
    given = Alikeness(HashingEmbedder(), midpoint=1 / 3, slope=6.0)
    assert given.curve == (1 / 3, 6.0)
    assert given(["born"], ["born"])[0, 0] == pytest.approx(1 / (1 + np.exp(-4)), abs=1e-5)


def test_a_text_is_embedded_once_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Meanings()
    alike = Alikeness(embedder, midpoint=0.5, slope=9.0)
    first = alike(["born"], ["birth", "garden"])
    assert (alike(["born"], ["birth", "garden"]) == first).all()
    assert sorted(embedder.asked) == ["birth", "born", "garden"]
    monkeypatch.setattr("agentgrpo.judges.evidence.alike._CACHED", 4)
    alike(["city"], ["river", "garden"])
    assert (alike(["born"], ["birth", "garden"]) == first).all()
    assert len(alike._vectors) <= 4


async def test_an_embedder_that_tells_nothing_apart_is_refused_when_it_is_probed() -> None:
    class Flat(Meanings):
        def embed(self, texts: Sequence[str]) -> Vectors:
            return np.full((len(texts), 8), 8**-0.5, np.float32)

    with pytest.raises(ConfigError, match=r"environment\.evidence\.embedder tells no words apart: .* 1\.000; give"):
        await judge(Flat()).probe()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_score": 0.0}, "environment.evidence.min_score=0.0; above 0 and up to 1 is allowed"),
        ({"min_rarity": 2.0}, "environment.evidence.min_rarity=2.0; above 0 "),
        ({"midpoint": 1.5}, "environment.evidence.midpoint=1.5; a cosine between -1 and 1, or null"),
        ({"slope": 0.0}, "environment.evidence.slope=0.0; above 0 is allowed, and null"),
    ],
)
def test_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        judge(**given)


async def test_without_a_corpus_short_words_can_answer_and_more_has_to_be_covered() -> None:
    of, lexical = judge(corpora=None), LexicalEvidence()
    pet, question = passage("x", "cat is a kind of pet"), "What kind of thing is a cat?"
    assert await score(of, question, pet) == 1.0
    assert lexical.judge_round(task(question=question), [], [pet]).score == 0.5
    part, question = passage("x", "Velmor was founded by Castin."), "Who founded the maker of Velmor?"
    assert lexical.judge_round(task(question=question), [], [part]).sufficient
    graded = await of.judge_round(task(question=question), [], [part])
    assert not graded.sufficient
    assert 0.7 < graded.score < 0.75
