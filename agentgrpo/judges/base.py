"""The interfaces of judges, which grade answers or sets of passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agentgrpo.core.messages import MAX_REASON, content_of
from agentgrpo.core.numbers import named, number
from agentgrpo.core.types import Episode, Passage, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A parsed grade in [0, 1]. A judge that cannot grade raises JudgeError; it never returns 0 instead. Raises
    BadValue if the score or a part is not a number."""

    score: float
    reason: str = ""  # in the judge's own words: the first MAX_REASON characters
    parts: Mapping[str, float] = field(default_factory=dict)  # the grades that make up the score, and counts

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", number(self.score, "the grade"))
        object.__setattr__(self, "reason", content_of(self.reason)[:MAX_REASON])
        object.__setattr__(self, "parts", named(self.parts, "the grade's parts", number))


class AnswerJudge(Protocol):
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        """One verdict per answer of the task's group, in order. An empty answer never matches. Raises JudgeError."""
        ...


@runtime_checkable
class EpisodeJudge(Protocol):
    """An AnswerJudge that reads whole episodes. grade_episodes is called in place of grade."""

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        """One verdict per episode of the task's group, all of them completed and with an answer."""
        ...


@runtime_checkable
class CountingJudge(Protocol):
    """An AnswerJudge that keeps an account."""

    def counts(self) -> Mapping[str, float]:
        """Totals by name since it was built, such as calls and cost; never a clock, and they never fall."""
        ...


async def grade_episodes(judge: AnswerJudge, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
    """The judge's verdicts; an EpisodeJudge is given whole episodes, any other judge their answers."""
    if isinstance(judge, EpisodeJudge):
        return await judge.grade_episodes(task, episodes)
    return await judge.grade(task, [episode.answer or "" for episode in episodes])


def counts_of(judges: Iterable[AnswerJudge]) -> dict[str, float]:
    """The summed counts of all counting judges; a judge that is listed twice counts once."""
    distinct = {id(judge): judge for judge in judges}.values()
    total: Counter[str] = Counter()
    for judge in distinct:
        if isinstance(judge, CountingJudge):
            total.update(judge.counts())
    return dict(total)


def canaries_of(judges: Iterable[object]) -> int:
    """The largest attribute canaries_per_eval of the judges: how many known-wrong answers to try before each
    evaluation. 0 if no judge can be fooled."""
    return max((int(getattr(judge, "canaries_per_eval", 0)) for judge in judges), default=0)


def compares(judge: AnswerJudge) -> bool:
    """Whether the judge, or a judge inside it, sees a group's answers side by side: its attribute `compares`."""
    return bool(getattr(judge, "compares", False)) or any(map(compares, getattr(judge, "judges", ())))


async def close_judge(judge: AnswerJudge | EvidenceJudge) -> None:
    """Close the judge and the judges inside it, if they have a `close`."""
    for part in getattr(judge, "judges", ()):
        await close_judge(part)
    close = getattr(judge, "close", None)
    if close is not None:
        await close()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResults:
    """The results of one query of a search round, after deduplication and reranking."""

    query: str
    passages: tuple[Passage, ...]
    subquestion: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceGrade:
    """`score` in [0, 1]; `sufficient`: the evidence is enough to answer from. Raises BadValue for a non-number."""

    sufficient: bool
    score: float
    num_sufficient_queries: int

    def __post_init__(self) -> None:
        queries = number(self.num_sufficient_queries, "the grade of a round: num_sufficient_queries")
        object.__setattr__(self, "score", number(self.score, "the grade of a round: score"))
        object.__setattr__(self, "num_sufficient_queries", int(queries))


class EvidenceJudge(Protocol):
    def judge_round(
        self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]
    ) -> EvidenceGrade | Awaitable[EvidenceGrade]:
        """Grade one search round; `seen` is every distinct passage of the episode so far, this round included. A judge
        that asks a model is async. A synchronous judge may take about a millisecond: every round waits for it."""
        ...
