"""Reads as the lexical judge does, and knows other words for the question's own: those that an embedder puts near."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.alike import Alikeness
from agentgrpo.judges.evidence.chains import Chains
from agentgrpo.retrieval.embedder import Embedder

MIN_SCORE, MIN_SCORE_WITHOUT_CORPUS = 0.9, 0.75
MIN_RARITY, MIN_RARITY_WITHOUT_CORPUS = 0.5, 0.25


class EmbeddingEvidence:
    """LexicalEvidence with one more way to cover a word of the question:

        covered  also the share, in [0, 1], to which one or two words of the passage mean what it does (Alikeness)

    "Where is Velmor headquartered?" is so covered by "The main office of Velmor is near Balvin.", with no thesaurus.
    As in BERTScore (Zhang et al. 2020, arXiv 1904.09675), a word counts by its rarity and is held against its best
    match. Unlike there, a word of a passage says one word of the question at most: "founded" is not the founder and the
    birth. Names and numbers mean themselves alone. Less than 0.2 is nothing."""

    def __init__(
        self,
        *,
        embedder: Embedder,
        min_score: float | None = None,
        min_rarity: float | None = None,
        midpoint: float | None = None,
        slope: float | None = None,
        max_hops: int = 4,
        stemmer: str | None = "english",
        corpora: Mapping[str, Sequence[Passage]] | None = None,
        thesaurus: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """min_score: null = 0.9, and 0.75 without a corpus. min_rarity: null = 0.5, and 0.25 without a corpus, where
        rarity is a word's length. midpoint, slope: of Alikeness, null = by the embedder. The others: see
        LexicalEvidence. Raises ConfigError."""
        if min_score is None:
            min_score = MIN_SCORE if corpora else MIN_SCORE_WITHOUT_CORPUS
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"environment.evidence.min_score={min_score}; above 0 and up to 1 is allowed")
        if min_rarity is None:
            min_rarity = MIN_RARITY if corpora else MIN_RARITY_WITHOUT_CORPUS
        self._min_score = min_score
        self._alike = Alikeness(embedder, midpoint=midpoint, slope=slope)
        self._chains = Chains(
            min_rarity=min_rarity,
            max_hops=max_hops,
            stemmer=stemmer,
            corpora=corpora,
            thesaurus=thesaurus,
            alike=self._alike,
        )

    async def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Raises RetrieverError where the embedder fails."""
        grade = self._chains.grade
        return await asyncio.to_thread(grade, task.question, results, seen, min_score=self._min_score)

    async def probe(self) -> None:
        """Load the model, and find its scale. Raises ConfigError, RetrieverError."""
        await asyncio.to_thread(lambda: self._alike.curve)
