"""The judge of reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Exit, Passage, Task
from agentgrpo.judges.answers import words
from agentgrpo.judges.base import AnswerJudge, Grade, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.report.claims import Claim, claims_of
from agentgrpo.judges.report.support import ClaimSupport


class ReportJudge:
    """Another judge's grade of the whole report, less what its claims do not rest on:

        grade · (1 - weight + weight · supported / claims)

    A claim is supported where the passages that it cites say what it says (`support`); it is unsupported where they do
    not, and uncited where it cites none that was shown. So a report that misses the question earns nothing, whatever
    it cites. `Grade.criteria` has the number of `claims`, and of those claims_supported, claims_unsupported and
    claims_uncited, beside what the other judge has there: judge=llm grades by the rubric of the task.
    """

    def __init__(self, *, judge: AnswerJudge, support: ClaimSupport, weight: float = 0.5, max_claims: int = 50) -> None:
        """weight: of the claims. max_claims: that are looked at; each further one counts as unsupported. Raises
        ConfigError."""
        if not 0 <= weight <= 1:
            raise ConfigError(f"judge.weight={weight}; from 0 to 1 is allowed")
        if max_claims < 1:
            raise ConfigError(f"judge.max_claims={max_claims}; 1 or more is allowed")
        self._judge, self._support, self._weight, self._max_claims = judge, support, weight, max_claims
        self.judges = (judge,)
        self.canaries_per_eval = canaries_of(self.judges)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        """Answers alone cite nothing."""
        return await self.grade_episodes(task, [_alone(task, answer) for answer in answers])

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        grades = await grade_episodes(self._judge, task, episodes)
        claims = [self._claims_of(episode) for episode in episodes]
        looked_at = [row[: self._max_claims] for row in claims]
        kinds = iter(await _all(self._kind(task, claim) for row in looked_at for claim in row))
        rows = [Counter([next(kinds) for _ in row]) for row in looked_at]
        for row, all_of in zip(rows, claims, strict=True):
            row["unsupported"] += max(0, len(all_of) - self._max_claims)
        return [self._weighed(grade, row) for grade, row in zip(grades, rows, strict=True)]

    def counts(self) -> Mapping[str, float]:
        total = Counter(counts_of(self.judges))
        total.update(self._support.counts())
        return dict(total)

    async def close(self) -> None:
        await self._support.close()

    def _weighed(self, grade: Grade, claims: Counter[str]) -> Grade:
        named = {name: float(claims[name]) for name in ("supported", "unsupported", "uncited")}
        total = sum(named.values())
        share = named["supported"] / total if total else 0.0
        said = f"{named['supported']:g} of {total:g} claims supported"
        return replace(
            grade,
            score=grade.score * (1 - self._weight + self._weight * share),
            detail=f"{said}; {grade.detail}" if grade.detail else said,
            criteria={**grade.criteria, "claims": total, **{f"claims_{name}": n for name, n in named.items()}},
        )

    def _claims_of(self, episode: Episode) -> list[Claim]:
        """With what it cites of what it was shown."""
        shown, answer = {*episode.retrieved_ids}, episode.answer or ""
        return claims_of(answer, [c for c in episode.citations if c.doc_id in shown]) if words(answer) else []

    async def _kind(self, task: Task, claim: Claim) -> str:
        if not claim.cited:
            return "uncited"
        passages = [Passage(id=c.doc_id, text=c.text) for c in {c.doc_id: c for c in claim.cited}.values()]
        return "supported" if await self._support.supports(task, claim.text, passages) else "unsupported"


async def _all(calls: Iterable[Coroutine[Any, Any, str]]) -> list[str]:
    """What all of them return. The first error is raised when all have ended, so that none is left running."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, str)]


def _alone(task: Task, answer: str) -> Episode:
    return Episode(task=task, sample_index=0, branches=(), answer=answer, exit=Exit.ANSWERED, metrics={})
