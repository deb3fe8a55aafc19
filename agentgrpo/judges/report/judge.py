"""The judge of reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Passage, Task
from agentgrpo.judges.answers import words
from agentgrpo.judges.base import AnswerJudge, Grade, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.report.claims import Claim, claims_of, without_repeats
from agentgrpo.judges.report.support import ClaimSupport

SUPPORTED, UNSUPPORTED, UNCITED = "supported", "unsupported", "uncited"
"""Kinds of claims."""


class ReportJudge:
    """Another judge grades the supported claims alone; unsupported and uncited claims reduce its grade:

        grade · (1 - weight + weight · supported / claims)

    A claim is supported if the passages that it cites say what it says (`support`), unsupported if they do not, and
    uncited if it cites no passage that was shown. So a report that misses the question earns nothing, whatever it
    cites, and text outside the supported claims earns nothing, whatever it says. A supported claim that repeats others
    is graded, but not counted. `Grade.parts` has the number of `claims` and its split into claims_supported,
    claims_unsupported and claims_uncited, beside the parts of the other judge's grade. The other judge may be
    judge=llm, which grades by the task's rubric.
    """

    def __init__(self, *, judge: AnswerJudge, support: ClaimSupport, weight: float = 0.5, max_claims: int = 50) -> None:
        """weight: the share of the grade that depends on the claims. max_claims: how many claims are checked; each
        further one counts as unsupported. Raises ConfigError."""
        if not 0 <= weight <= 1:
            raise ConfigError(f"judge.weight={weight}; from 0 to 1 is allowed")
        if max_claims < 1:
            raise ConfigError(f"judge.max_claims={max_claims}; 1 or more is allowed")
        self._judge, self._support, self._weight, self._max_claims = judge, support, weight, max_claims
        self.judges = (judge,)
        self.canaries_per_eval = canaries_of((judge, support))

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        """Grade answers without episodes, such as canaries, which cannot cite passages. The grade is the mean of the
        other judge's grade and of whether the references say what the answer says (0 or 1). Both judges are asked, so
        that neither hides that the other is fooled."""
        grades = await self._judge.grade(task, answers)
        passage = Passage(id=task.id, text="\n".join(task.references) or task.question)
        calls = (self._kind(task, answer, [passage] if words(answer) else []) for answer in answers)
        kinds = await _all(calls)
        return [replace(g, score=(g.score + (k == SUPPORTED)) / 2) for g, k in zip(grades, kinds, strict=True)]

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        claims = [self._claims_of(episode) for episode in episodes]
        looked_at = [row[: self._max_claims] for row in claims]
        kinds = iter(await _all(self._kind(task, c.text, _passages(c)) for row in looked_at for c in row))
        sorted_out = [[(next(kinds), claim) for claim in row] for row in looked_at]
        supported = [[claim for kind, claim in row if kind == SUPPORTED] for row in sorted_out]
        grades = await self._grades(task, [_with(e, row) for e, row in zip(episodes, supported, strict=True)])
        counts = [Counter(kind for kind, _ in row) for row in sorted_out]
        for count, row, all_of in zip(counts, supported, claims, strict=True):
            count[SUPPORTED] = len(without_repeats(row))
            count[UNSUPPORTED] += max(0, len(all_of) - self._max_claims)
        return [self._weighed(grade, count) for grade, count in zip(grades, counts, strict=True)]

    def counts(self) -> Mapping[str, float]:
        total = Counter(counts_of(self.judges))
        total.update(self._support.counts())
        return dict(total)

    async def close(self) -> None:
        await self._support.close()

    async def _grades(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        """The other judge's grades of the supported claims; 0 without asking if there are none."""
        asked = [episode for episode in episodes if episode.answer]
        grades = iter(await grade_episodes(self._judge, task, asked) if asked else [])
        return [next(grades) if episode.answer else Grade(score=0.0) for episode in episodes]

    def _weighed(self, grade: Grade, claims: Counter[str]) -> Grade:
        named = {name: float(claims[name]) for name in (SUPPORTED, UNSUPPORTED, UNCITED)}
        total = sum(named.values())
        share = named[SUPPORTED] / total if total else 0.0
        said = f"{named[SUPPORTED]:g} of {total:g} claims supported"
        return replace(
            grade,
            score=grade.score * (1 - self._weight + self._weight * share),
            reason=f"{said}; {grade.reason}" if grade.reason else said,
            parts={**grade.parts, "claims": total, **{f"claims_{name}": n for name, n in named.items()}},
        )

    def _claims_of(self, episode: Episode) -> list[Claim]:
        """The claims of the answer, with their citations of passages that were shown."""
        shown, answer = {*episode.retrieved_ids}, episode.answer or ""
        return claims_of(answer, [c for c in episode.citations if c.doc_id in shown]) if words(answer) else []

    async def _kind(self, task: Task, claim: str, passages: Sequence[Passage]) -> str:
        if not passages:
            return UNCITED
        return SUPPORTED if await self._support.supports(task, claim, passages) else UNSUPPORTED


def _passages(claim: Claim) -> list[Passage]:
    return [Passage(id=c.doc_id, text=c.text) for c in {c.doc_id: c for c in claim.cited}.values()]


def _with(episode: Episode, claims: Sequence[Claim]) -> Episode:
    """The episode with these claims as its answer."""
    return replace(episode, answer="\n".join(claim.text for claim in claims))


async def _all(calls: Iterable[Coroutine[Any, Any, str]]) -> list[str]:
    """The results of all calls. The first error is raised when all have ended, so that no call is left running."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, str)]
