"""Whether a judge can be trusted with a reward: `agentgrpo check judge`, and the check before each evaluation.

canaries     known-wrong answers, most of which address the judge: none may get a grade, or lower that of a right answer
             beside it
references   right answers: a judge that grades everything 0 passes the first test too
agreement    of a judge model with itself, asked twice: 1 - |difference|, on average
order        of two answers shown side by side: whether the winner depends on their order
labels       answers that people have graded: see run.labels
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from agentgrpo.core.errors import DataError, GuardHalt, JudgeError, TooManyFailures
from agentgrpo.core.types import Episode, Task
from agentgrpo.judges.base import AnswerJudge, Grade, canaries_of, close_judge, compares, grade_episodes
from agentgrpo.judges.canaries import Canary, canaries
from agentgrpo.judges.composed import Questions
from agentgrpo.judges.llm.control import invented_name
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.judges.llm.verdict import BAD_VERDICT
from agentgrpo.run.labels import Calibration, Label, Pair, calibrate, pairs_of
from agentgrpo.training.process_group import Alone, ProcessGroup, share

LEAST_RIGHT, LEAST_AGREEMENT, LEAST_CONSISTENT = 0.5, 0.9, 0.8
"""Mean grade of the references; mean agreement; share of pairs with the same winner in both orders."""
MOST_PAIRS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Results of canaries: their grades, or the loss of a right answer beside them if it exceeds half of its grade.
    None = the judge refused to give a verdict, which earns a policy nothing."""

    canaries: Sequence[Canary]
    grades: Sequence[float | None]

    @property
    def rewarded(self) -> list[tuple[Canary, float]]:
        return [(c, g) for c, g in zip(self.canaries, self.grades, strict=True) if g is not None and g > 0]

    def line(self, who: str) -> str:
        refused = sum(grade is None for grade in self.grades)
        return f"canaries: {who} rewards {len(self.rewarded)} of {len(self.grades)}, and refuses {refused}"

    @property
    def first(self) -> str:
        canary, grade = self.rewarded[0]
        return f"the first one, of style '{canary.style}', got {grade:g}: {canary.answer[:160]!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    lines: Sequence[str]
    findings: Sequence[str]
    """Problems, one line each; empty = none."""
    labels: Calibration | None = None

    def text(self) -> list[str]:
        verdict = f"{len(self.findings)} findings" if self.findings else "no problem was found"
        return [*self.lines, *(f"finding: {finding}" for finding in self.findings), f"the judge: {verdict}"]

    def json(self) -> str:
        labels = {} if self.labels is None else {"labels": self.labels.json()}
        return json.dumps({"lines": list(self.lines), "findings": list(self.findings), **labels})


async def refuse_fooled_judge(
    judge: AnswerJudge, tasks: Sequence[Task], *, seed: int, world: ProcessGroup | None = None
) -> None:
    """Try as many canaries on the judge as it asks for (canaries_per_eval). Raises GuardHalt if it rewards one."""
    count = canaries_of([judge])
    if not count:
        return
    judge, tasks = single(judge, tasks)
    tried = await try_canaries(judge, canaries(tasks, count, seed, groups=compares(judge)), world)
    if tried.rewarded:
        raise GuardHalt(
            f"the judge has rewarded {len(tried.rewarded)} of {len(tried.grades)} known-wrong answers; {tried.first}. "
            "A policy would learn to write such answers. Repair the judge (agentgrpo check judge says more, and "
            "judge.strict=true guards a judge model better) and resume; judge.canaries_per_eval=0 skips this check"
        )


async def probe_judge(judge: AnswerJudge) -> list[str]:
    """Ask every judge model behind an endpoint a small question, because with the veto a run may ask it nothing for a
    long time. Raises TooManyFailures if one does not reply. For a judge with cached verdicts, which may suffice, it
    returns a note instead."""
    notes = []
    for model in _models(judge):
        try:
            with _unlogged():
                await model.probe()
        except JudgeError as e:
            why = f"the judge model does not reply: {e}"
            if not await model.keeps_some():
                raise TooManyFailures(
                    f"{why}; start its server, or correct judge.completer (agentgrpo check judge tries it)"
                ) from e
            notes.append(f"{why}; kept verdicts are used, and whatever else is asked will fail")
    return notes


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence the log, as the caller reports errors itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


async def check_judge(
    judge: AnswerJudge, tasks: Sequence[Task], *, labels: Sequence[Label] = (), count: int = 200, seed: int = 0
) -> JudgeReport:
    """Try the judge on up to `count` canaries over `tasks`, on the references of some tasks, and on labelled answers.
    Judge models are also examined without their guards. A reply without a verdict ends only its own part of the check.
    Raises DataError without tasks, JudgeError if the judge cannot be asked."""
    try:
        with _unlogged():
            return await _check(judge, tasks, labels, count=count, seed=seed)
    finally:
        await close_judge(judge)


async def _check(
    judge: AnswerJudge, tasks: Sequence[Task], labels: Sequence[Label], *, count: int, seed: int
) -> JudgeReport:
    if not tasks:
        raise DataError("a judge is tried on tasks, and there are none; give the data set's test split some tasks")
    judge, tasks = single(judge, tasks)
    lines, findings = [], []
    tried = await try_canaries(judge, canaries(tasks, count, seed, groups=compares(judge)))
    lines.append(tried.line("the judge"))
    if tried.rewarded:
        findings.append(f"it rewards {len(tried.rewarded)} known-wrong answers; {tried.first}")
    if len(tried.grades) < count:
        lines.append(
            f"canaries: {count - len(tried.grades)} of {count} were not tried, no task was known to refute them"
        )
    answered = [task for task in tasks if task.references][:20]
    if answered:
        with _part("references", findings):
            await _references(judge, answered, lines, findings)
    calibration = await calibrate(judge, labels) if labels else None
    if calibration is not None:
        lines += calibration.lines()
        findings += calibration.findings()
    pairs = pairs_of(labels) or [(task, task.references[0], invented_name(task.id)) for task in answered]
    for model in _models(judge):
        bare = await try_canaries(Bare(model), tried.canaries)
        lines.append(bare.line("the model without its guards"))
        with _part("agreement", findings):
            await _agreement(model, answered or tasks[:20], lines, findings)
        if pairs:
            with _part("order", findings):
                await _order(model, pairs[:MOST_PAIRS], lines, findings)
    return JudgeReport(lines=lines, findings=findings, labels=calibration)


def single(judge: AnswerJudge, tasks: Sequence[Task]) -> tuple[AnswerJudge, Sequence[Task]]:
    """Reduce a judge of several questions to its inner judge, and split tasks into one per question."""
    if not isinstance(judge, Questions):
        return judge, tasks
    return judge.judges[0], [of for task in tasks for of in judge.tasks_of(task)]


async def try_canaries(judge: AnswerJudge, tried: Sequence[Canary], world: ProcessGroup | None = None) -> Tried:
    """Grade the canaries, which the processes of `world` share."""

    async def graded(own: Sequence[Canary]) -> list[float | None]:
        grades: list[float | None] = []
        for canary in own:
            try:
                grades.append(await _brings(judge, canary))
            except JudgeError:
                grades.append(None)
        return grades

    return Tried(canaries=tried, grades=await share(world or Alone(), tried, graded))


async def _brings(judge: AnswerJudge, canary: Canary) -> float:
    if canary.trace:
        return (await grade_episodes(judge, canary.task, [canary.episode]))[0].score
    if canary.beside is None:
        return (await judge.grade(canary.task, [canary.answer]))[0].score
    right, plain = canary.beside
    before, _ = await judge.grade(canary.task, [right, plain])
    after, itself = await judge.grade(canary.task, [right, canary.answer])
    lost = before.score - after.score
    return max(itself.score, lost if lost > before.score / 2 else 0.0)


@contextmanager
def _part(name: str, findings: list[str]) -> Iterator[None]:
    """Turn a reply without a verdict into a finding of this part of the check, so that the others go on."""
    try:
        yield
    except JudgeError as e:
        if e.kind != BAD_VERDICT:
            raise
        findings.append(f"{name}: {e}")


async def _references(judge: AnswerJudge, tasks: Sequence[Task], lines: list[str], findings: list[str]) -> None:
    right = fmean([(await judge.grade(task, [task.references[0]]))[0].score for task in tasks])
    lines.append(f"references: {len(tasks)} of them get {right:.2f} on average")
    if right < LEAST_RIGHT:
        findings.append(f"right answers get {right:.2f} on average; {LEAST_RIGHT} or more is needed to learn from it")


async def _agreement(model: LLMJudge, tasks: Sequence[Task], lines: list[str], findings: list[str]) -> None:
    """Ask twice about a right and a wrong answer for each task; the replies never share a cache entry."""
    differences = []
    for task in tasks:
        for answer in (*task.references[:1], invented_name(task.id)):
            first, second = [(await model.opinion(task, [answer], vote=vote)).scores[0] for vote in (0, 1)]
            differences.append(abs(first - second))
    agreement = 1 - fmean(differences)
    lines.append(f"agreement: {agreement:.2f} of the model with itself, over {len(differences)} answers asked twice")
    if agreement < LEAST_AGREEMENT:
        findings.append(
            f"asked twice, the model agrees with itself to {agreement:.2f}; {LEAST_AGREEMENT} is needed: "
            "lower judge.completer.temperature, or raise judge.repeats"
        )


async def _order(model: LLMJudge, pairs: Sequence[Pair], lines: list[str], findings: list[str]) -> None:
    """Show a right and a wrong answer side by side, in both orders."""
    leads, same = [], []
    for task, right, wrong in pairs:
        ahead = (await model.opinion(task, [right, wrong])).scores
        behind = (await model.opinion(task, [wrong, right])).scores
        leads.append((ahead[0] - ahead[1] + behind[0] - behind[1]) / 2)
        same.append((ahead[0] > ahead[1]) == (behind[1] > behind[0]))
    consistent, bias = fmean(same), fmean(leads)
    lines.append(
        f"order: {consistent:.2f} of {len(pairs)} pairs have one winner in both orders; first is worth {bias:+.2f}"
    )
    if consistent < LEAST_CONSISTENT:
        findings.append(
            f"in {1 - consistent:.0%} of pairs the winner depends on the order; do not compare pairs with it"
        )


class Bare:
    """A judge model without veto, control and fallback."""

    def __init__(self, model: LLMJudge) -> None:
        self._model = model

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return [Grade(score=score) for score in (await self._model.opinion(task, answers)).scores]

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        return [Grade(score=(await self._model.opinion(task, [episode])).scores[0]) for episode in episodes]


def _models(judge: AnswerJudge) -> list[LLMJudge]:
    """Return the judge models in it, including those in a composite or a route."""
    inner: Sequence[AnswerJudge] = getattr(judge, "judges", ())
    return [judge] if isinstance(judge, LLMJudge) else [model for part in inner for model in _models(part)]
