"""Reads passages against the question, by the words that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.chains import Chains

MIN_SCORE, MIN_SCORE_WITHOUT_CORPUS = 0.9, 0.5


class LexicalEvidence:
    """Scores the best chain of the passages that the episode has shown, by how much of the question it covers:

        score = sum over the question's words of weight * covered / sum of weights,     in [0, 1]
                halved if the chain's last passage says nothing new, since it cannot hold the answer
        sufficient  <=>  score >= min_score

        weight   (1 + rarity) / 2; a word that occurs twice in the question must be covered twice
        covered  1 if a passage has the word (its stem); with a `thesaurus` entry, the share of the entry that it has,
                 or 0.5 for the word itself
        new      a rare word (rarity >= min_rarity) that the question does not have
        chain    up to max_hops passages; each has a new word of the one before, and covers more of the question

    "Where was the founder of Velmor born?" does not name Castin. "Velmor was founded by Castin." covers two of its
    three words and introduces Castin. "Castin was born in Roka." continues the chain, covers the third word and says
    something new: 1.0. Each passage alone covers less, and so does "Velmor tours are popular." with either.

    Function words and words like "name" of the question do not count. Words that occur in no passage of the corpus and
    are not names do not count either, because no passage could contain them. Scores of the retrievers play no part, so
    that all retrievers are judged alike. More passages never lower the score (as long as 2,000 chains are enough)."""

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
        """min_score: null = 0.9, or 0.5 without a corpus, when more words count that no passage contains. stemmer:
        language of the stemmer, null = no stemming. corpora: the passages from which rarity is counted. thesaurus: a
        word of questions -> the words that passages use instead. Raises ConfigError."""
        if min_score is None:
            min_score = MIN_SCORE if corpora else MIN_SCORE_WITHOUT_CORPUS
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"environment.evidence.min_score={min_score}; above 0 and up to 1 is allowed")
        self._min_score = min_score
        self._chains = Chains(
            min_rarity=min_rarity, max_hops=max_hops, stemmer=stemmer, corpora=corpora, thesaurus=thesaurus
        )

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Grade all passages `seen`. A query of the round counts as sufficient if its own passages cover it."""
        return self._chains.grade(task.question, results, seen, min_score=self._min_score)
