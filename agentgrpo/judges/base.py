"""What a judge is: it grades answers or passage sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgrpo.types import Passage, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A parsed grade in [0, 1]. A judge that cannot grade raises JudgeError; it never returns 0 instead."""

    score: float
    detail: str = ""


class AnswerJudge(Protocol):
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        """One verdict per answer of the task's group, in order. An empty answer never matches. Raises JudgeError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResults:
    """What one query of a round brought, after deduplication and reranking."""

    query: str
    passages: tuple[Passage, ...]
    subquestion: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVerdict:
    """score in [0, 1]; sufficient: enough to answer from."""

    sufficient: bool
    score: float
    num_sufficient_queries: int


class EvidenceJudge(Protocol):
    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> RoundVerdict:
        """Grade one search round; `seen` is every distinct passage of the episode so far, this round included."""
        ...
