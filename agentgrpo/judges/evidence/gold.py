"""Knows which passages prove the answer (Task.metadata.supporting): for evaluation, never for rewards."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Episode, Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults


def supporting_of(task: Task) -> frozenset[str]:
    """Ids of the passages that prove the answer; empty if the task does not name them."""
    named = task.metadata.get("supporting", ())
    return frozenset(map(str, named)) if isinstance(named, list | tuple) else frozenset()


class GoldEvidence:
    """score = share of the supporting passages that were seen; sufficient if all were. Raises DataError if the task
    does not name them."""

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        wanted = supporting_of(task)
        if not wanted:
            raise DataError(
                f"task {task.id} does not say which passages prove its answer (metadata.supporting, a list of ids), "
                "which environment.evidence=gold needs; use evidence=lexical"
            )
        share = len(wanted & {p.id for p in seen}) / len(wanted)
        queries = sum(not wanted.isdisjoint(p.id for p in result.passages) for result in results)
        return EvidenceGrade(sufficient=share == 1.0, score=share, num_sufficient_queries=queries)


def was_supported(episode: Episode) -> bool | None:
    """Whether all supporting passages were shown; None if the task does not name them, or nothing was shown."""
    wanted = supporting_of(episode.task)
    return wanted <= {*episode.retrieved_ids} if wanted and episode.retrieved_ids else None
