"""Reads what passages say against the question, by the words that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.chains import Chains

MIN_SCORE, MIN_SCORE_WITHOUT_CORPUS = 0.9, 0.5


class LexicalEvidence:
    """The best chain of all passages that the episode has shown, by how much of the question it covers:

        score = sum over the question's words of weight * covered / sum of weights,     in [0, 1]
                half of it where the chain's last passage says nothing new: then it cannot say the answer
        sufficient  <=>  score >= min_score

        weight   (1 + rarity) / 2; a word that stands twice in the question has to be told twice
        covered  a passage of the chain has the word (its stem), or the share that it has of its `thesaurus` entry
        new      a rare word (rarity >= min_rarity) that the question does not have
        chain    up to max_hops passages; each has a new word of the one before, and covers more of the question

    "Where was the founder of Velmor born?" names no Castin. "Velmor was founded by Castin." covers two of its three
    words and brings Castin up, "Castin was born in Roka." goes on from there, covers the third and says something new:
    1.0. Both without the other cover less, and so does "Velmor tours are popular." with either.

    Left out of the question are function words, words like "name", and words that no passage of the corpus has and that
    are no names: nothing found could say them. Scores of the retrievers play no part, so that all of them are judged
    alike. More passages never lower the score (as long as 2,000 chains are enough)."""

    def __init__(
        self,
        *,
        min_score: float | None = None,
        min_rarity: float = 0.5,
        max_hops: int = 4,
        stemmer: str | None = "english",
        corpora: Mapping[str, Sequence[Passage]] | None = None,
        thesaurus: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """min_score: null = 0.9, and 0.5 without a corpus, where questions have more that nothing found could say.
        stemmer: language of the words, null = none. corpora: what rarity is counted in. thesaurus: a word of
        questions -> what passages say instead. Raises ConfigError."""
        if min_score is None:
            min_score = MIN_SCORE if corpora else MIN_SCORE_WITHOUT_CORPUS
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"environment.evidence.min_score={min_score}; above 0 and up to 1 is allowed")
        self._min_score = min_score
        self._chains = Chains(
            min_rarity=min_rarity, max_hops=max_hops, stemmer=stemmer, corpora=corpora, thesaurus=thesaurus
        )

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Grade all that was `seen`; each query of the round counts as sufficient where its own passages cover it."""
        return self._chains.grade(task.question, results, seen, min_score=self._min_score)
