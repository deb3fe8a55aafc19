"""Several judges as one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agentgrpo.core.errors import ConfigError, JudgeError, did_you_mean
from agentgrpo.core.types import Episode, Exit, Message, Task
from agentgrpo.judges.answers import words
from agentgrpo.judges.base import AnswerJudge, Grade, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.judger import JudgerJudge, source_of
from agentgrpo.judges.merging import merged_grade
from agentgrpo.tasks.dialogue import CHUNKS, QUESTIONS, Question, questions_of, split
from agentgrpo.tasks.suite import member_of


class Composite:
    """The weighted mean of named judges: sum w·score / sum w, so that a grade stays in [0, 1] whatever the weights.

    If one judge fails, the verdict fails: a mean over the others would be a different measure.
    """

    def __init__(self, *, parts: Mapping[str, tuple[AnswerJudge, float]]) -> None:
        """Raises ConfigError for a negative or non-finite weight, or when no weight is positive."""
        for name, (_, weight) in parts.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(
                    f"composite judge: weight {weight} of '{name}'; a finite number >= 0 is allowed; correct it"
                )
        if not any(weight > 0 for _, weight in parts.values()):
            raise ConfigError(f"composite judge: the weights of {sorted(parts)} are all 0; give one a weight > 0")
        self._parts = dict(parts)
        self.judges = tuple(judge for judge, _ in parts.values())
        self.canaries_per_eval = canaries_of(self.judges)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        columns = {name: await judge.grade(task, answers) for name, (judge, _) in self._parts.items()}
        return self._merged(columns, len(answers))

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        columns = {name: await grade_episodes(judge, task, episodes) for name, (judge, _) in self._parts.items()}
        return self._merged(columns, len(episodes))

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def _merged(self, columns: Mapping[str, Sequence[Grade]], count: int) -> list[Grade]:
        total = math.fsum(weight for _, weight in self._parts.values())
        grades = [{name: verdicts[i] for name, verdicts in columns.items()} for i in range(count)]
        scores = [math.fsum(self._parts[name][1] * one.score for name, one in row.items()) / total for row in grades]
        return [merged_grade(score, row) for score, row in zip(scores, grades, strict=True)]


# --- A judge for each kind of data.


def refuse_unjudged(judge: AnswerJudge, tasks: Iterable[Task]) -> None:
    """Raise ConfigError for the first of `tasks` for whose source a Route, also a nested one, has no judge. Raise it
    too if the first task of a judge of one answer asks several questions (agentgrpo.tasks.dialogue). A judge may also
    refuse tasks itself: its refuse_task(task) raises DataError."""
    if isinstance(judge, Route):
        for task in tasks:
            refuse_unjudged(judge.judge_of(task), [task])
        return
    asked = getattr(judge, "tasks_of", None)
    if asked is not None:  # as of Questions: each question is a task for the inner judge
        tasks = [of for task in tasks for of in asked(task)]
    inner: Sequence[AnswerJudge] = getattr(judge, "judges", ())
    tasks = list(tasks)
    if not inner:
        _refuse_several(judge, tasks[0] if tasks else None)
        if hasattr(judge, "refuse_task"):
            for task in tasks:
                judge.refuse_task(task)
        return
    for part in inner:
        refuse_unjudged(part, tasks)


def _refuse_several(judge: AnswerJudge, task: Task | None) -> None:
    """Raise ConfigError if the task asks several questions. A user's own judge is exempt: it may split the answer
    (dialogue.join)."""
    if not type(judge).__module__.startswith("agentgrpo.") or isinstance(judge, JudgerJudge):
        return
    if task is not None and {CHUNKS, QUESTIONS} <= task.metadata.keys():
        raise ConfigError(
            f"task {task.id} asks several questions, and the judge {type(judge).__name__} grades one answer: it would "
            "find every answer wrong; use judge=questions and judge.judge.name to grade each question, or "
            "judge=questions_by_metric"
        )


class Route:
    """Each task is graded by the judge of its data source: the task's own field data_source if it has one, else the
    data set's name. A source without a judge is a mistake in the configuration, not a grade of 0: ConfigError."""

    def __init__(self, *, routes: Mapping[str, AnswerJudge]) -> None:
        if not routes:
            raise ConfigError("judge.routes is empty; name a judge for each data source: judge.routes.SOURCE.name=...")
        self._routes = dict(routes)
        self.judges = tuple(routes.values())
        self.canaries_per_eval = canaries_of(self.judges)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return await self.judge_of(task).grade(task, answers)

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        return await grade_episodes(self.judge_of(task), task, episodes)

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def judge_of(self, task: Task) -> AnswerJudge:
        """The judge of the task's source. Raises ConfigError if the source has no judge."""
        source = source_of(task)
        if source not in self._routes:
            known = ", ".join(sorted(self._routes))
            raise ConfigError(
                f"task {task.id} is from '{source}', and judge.routes has {known}; add a judge for it: "
                f"+judge.routes.{source}.name=exact_match.{did_you_mean(source, self._routes)}"
            )
        return self._routes[source]


class SuiteJudge(Route):
    """Each task of a suite is graded by the judge of its member."""

    def judge_of(self, task: Task) -> AnswerJudge:
        return self._routes[member_of(task)]


# --- The judge of episodes that answer several questions at once (agentgrpo.tasks.dialogue), such as a memory agent's.


class Questions:
    """The mean of another judge's grades over the questions of a task. The other judge sees each question as a separate
    task: its id is "<task>#<i>", its references are the question's answers, and its data source is the question's
    metric, else the task's source. So with judge=route inside, the judge of its metric grades each question. An empty
    answer is graded 0 without asking.
    """

    def __init__(self, *, judge: AnswerJudge) -> None:
        self._judge = judge
        self.judges = (judge,)
        self.canaries_per_eval = canaries_of(self.judges)
        self._routes = any(isinstance(part, Route | JudgerJudge) for part in _parts(judge))

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return await self.grade_episodes(task, [_with_answer(task, answer) for answer in answers])

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        rows = await self.grades(task, episodes)
        return [_mean_of(row) for row in rows]

    async def grades(self, task: Task, episodes: Sequence[Episode]) -> list[tuple[Grade, ...]]:
        """Grade each question of each episode, a tuple per episode. Raises JudgeError, and the errors of `tasks_of`."""
        asked = self.tasks_of(task)
        answers = [split(episode.answer or "", len(asked)) for episode in episodes]
        given = [
            [replace(e, task=of, answer=texts[i]) for e, texts in zip(episodes, answers, strict=True)]
            for i, of in enumerate(asked)
        ]
        found = await asyncio.gather(*map(self._grade, asked, given), return_exceptions=True)
        for column in found:  # after all calls have ended, so that no call is left running
            if isinstance(column, BaseException):
                raise column
        columns = [column for column in found if not isinstance(column, BaseException)]
        return list(zip(*columns, strict=True))

    def tasks_of(self, task: Task) -> list[Task]:
        """The questions of the task, as tasks. Raises ConfigError if a question names a metric but the judge does not
        route by metric, and DataError for a task without questions."""
        return [self._task(task, i, question) for i, question in enumerate(questions_of(task))]

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def _task(self, task: Task, number: int, question: Question) -> Task:
        if question.metric and not self._routes:
            raise ConfigError(
                f"task {task.id}: question {number} is to be graded by '{question.metric}', but one judge.judge grades "
                "all questions; use judge=questions_by_metric, or name no metric (task.metric='' where the data's "
                "format does)"
            )
        return Task(
            id=f"{task.id}#{number}",
            messages=(Message(role="user", content=question.text),),
            references=question.answers,
            metadata={"kind": question.kind, "options": list(question.options)},
            data_source=question.metric or task.data_source,
        )

    async def _grade(self, of: Task, episodes: Sequence[Episode]) -> list[Grade]:
        """The grades of one question, one per episode."""
        given = [e for e in episodes if words(e.answer or "")]
        verdicts = await grade_episodes(self._judge, of, given) if given else []
        if len(verdicts) != len(given):
            raise JudgeError(
                f"task {of.id}: the judge gave {len(verdicts)} grades for {len(given)} answers; repair the judge",
                kind="bad_verdict",
            )
        grades = iter(verdicts)
        return [next(grades) if words(e.answer or "") else Grade(score=0.0) for e in episodes]


def _mean_of(row: Sequence[Grade]) -> Grade:
    """Each part is the mean over the questions that have it."""
    parts = {name: [grade.parts[name] for grade in row if name in grade.parts] for grade in row for name in grade.parts}
    return Grade(
        score=math.fsum(grade.score for grade in row) / len(row),
        reason=", ".join(f"#{i} {grade.score:g}{grade.reason and f': {grade.reason}'}" for i, grade in enumerate(row)),
        parts={name: math.fsum(values) / len(values) for name, values in parts.items()},
    )


def _parts(judge: AnswerJudge) -> Iterator[AnswerJudge]:
    yield judge
    for part in getattr(judge, "judges", ()):
        yield from _parts(part)


def _with_answer(task: Task, answer: str) -> Episode:
    return Episode(task=task, sample_index=0, branches=(), answer=answer, exit=Exit.ANSWERED, metrics={})
