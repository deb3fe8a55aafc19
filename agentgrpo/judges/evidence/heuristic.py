"""Judges by counts, lengths and scores, without reading the texts; kept as a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults


class HeuristicEvidence:
    """Grades one search round.

        query sufficient  <=>  >= min_results_per_query passages of >= min_content_length characters each,
                               top score >= min_top_score and mean score >= min_average_score
        round sufficient  <=>  >= 1 query, >= min_total_results passages in all, every query sufficient;
                               a query bound to a subquestion lowers min_total_results to max(1, min_results_per_query)
        score             :=   clamp01(0.5·share of sufficient queries + 0.5·mean of s/(1+s)),
                               the mean over the queries whose top score s is > 0; 0 without such a query

    Passages without a score count as results and take no part in top and mean. If no passage of a query has a score,
    top and mean are 0.
    """

    def __init__(
        self,
        *,
        min_results_per_query: int = 1,
        min_content_length: int = 10,
        min_total_results: int = 2,
        min_top_score: float = 0.0,
        min_average_score: float = 0.0,
    ) -> None:
        """Lengths in characters. Raises ConfigError for a negative count or a threshold that is not a finite number."""
        counts = {
            "min_results_per_query": min_results_per_query,
            "min_content_length": min_content_length,
            "min_total_results": min_total_results,
        }
        for name, count in counts.items():
            if count < 0:
                raise ConfigError(f"{name} {count}: 0 or more is allowed; correct it")
        for name, threshold in {"min_top_score": min_top_score, "min_average_score": min_average_score}.items():
            if not math.isfinite(threshold):
                raise ConfigError(f"{name} {threshold}: a finite number is allowed; correct it")
        self._min_results = min_results_per_query
        self._min_length = min_content_length
        self._min_total = min_total_results
        self._min_top = min_top_score
        self._min_average = min_average_score

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Grade the round by its own results; earlier rounds (`seen`) do not count."""
        if not results:
            return EvidenceGrade(sufficient=False, score=0.0, num_sufficient_queries=0)
        sufficient = sum(self._query_sufficient(r) for r in results)
        bound = any(r.subquestion is not None for r in results)
        needed = max(1, self._min_results) if bound else self._min_total
        return EvidenceGrade(
            sufficient=sufficient == len(results) and sum(len(r.passages) for r in results) >= needed,
            score=_score(sufficient / len(results), results),
            num_sufficient_queries=sufficient,
        )

    def _query_sufficient(self, result: QueryResults) -> bool:
        if sum(len(p.text) >= self._min_length for p in result.passages) < self._min_results:
            return False
        scores = _scores(result)
        top, average = (max(scores), math.fsum(scores) / len(scores)) if scores else (0.0, 0.0)
        return top >= self._min_top and average >= self._min_average


def _scores(result: QueryResults) -> list[float]:
    return [p.score for p in result.passages if p.score is not None]


def _score(share: float, results: Sequence[QueryResults]) -> float:
    tops = [max(scores) for r in results if (scores := _scores(r))]
    strengths = [s / (1 + s) for s in tops if s > 0]
    mean = math.fsum(strengths) / len(strengths) if strengths else 0.0
    return min(1.0, max(0.0, 0.5 * share + 0.5 * mean))
