"""A reranker's model reads question and passages together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.retrieval.base import Reranker
from agentgrpo.retrieval.corpus import searchable_text


class RerankerEvidence:
    """score = the reranker's best score of a passage seen, or of all passages joined into one; sufficient if it is
    min_score or more. A model trained on single passages may underrate two passages that answer together."""

    def __init__(self, *, reranker: Reranker | None, min_score: float = 0.5) -> None:
        """reranker: its scores must be in [0, 1], as those of a cross-encoder are. Raises ConfigError."""
        if reranker is None:
            raise ConfigError("environment.evidence.reranker.name=none; cross_encoder, http and lexical are allowed")
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"environment.evidence.min_score={min_score}; above 0 and up to 1 is allowed")
        self._reranker, self._min_score = reranker, min_score

    async def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Raises JudgeError for a score outside [0, 1], and the reranker's errors."""
        together = Passage(id="all that was seen", text="\n".join(map(searchable_text, seen)))
        best = await self._reranker.rerank(task.question, [*seen, together][: len(seen) + (len(seen) > 1)], top_k=1)
        score = best[0].score if best else 0.0
        if score is None or not 0 <= score <= 1:
            raise JudgeError(
                f"the reranker of environment.evidence gives the score {score}; from 0 to 1 is allowed: use "
                "environment.evidence.reranker.name=cross_encoder",
                kind="garbage",
            )
        sufficient = score >= self._min_score
        return EvidenceGrade(sufficient=sufficient, score=score, num_sufficient_queries=len(results) * sufficient)
