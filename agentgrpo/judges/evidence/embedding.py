"""Reads like the lexical judge, but also accepts other words that an embedder places near the question's words."""

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

        covered  also the similarity in meaning, in [0, 1], of one or two words of the passage (Alikeness)

    So "The main office of Velmor is near Balvin." covers "Where is Velmor headquartered?", without a thesaurus. Each
    word counts by its rarity and is compared with its best match, as in BERTScore (Zhang et al. 2020, arXiv
    1904.09675). Unlike there, a word of a passage covers at most one word of the question: "founded" cannot cover both
    "founder" and "born". Names and numbers match only themselves. A similarity below 0.2 counts as 0."""

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
        """min_score: null = 0.9, or 0.75 without a corpus. min_rarity: null = 0.5, or 0.25 without a corpus, when
        rarity is a word's length. midpoint, slope: see Alikeness; null = from the embedder. Other arguments: see
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
        """Raises RetrieverError if the embedder fails."""
        grade = self._chains.grade
        return await asyncio.to_thread(grade, task.question, results, seen, min_score=self._min_score)

    async def probe(self) -> None:
        """Load the model and compute its scale. Raises ConfigError, RetrieverError."""
        await asyncio.to_thread(lambda: self._alike.curve)
