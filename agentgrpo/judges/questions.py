"""The judge of episodes that answer several questions at once (agentgrpo.dialogue), such as a memory agent's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from agentgrpo.dialogue import Question, questions_of, split
from agentgrpo.errors import ConfigError, JudgeError
from agentgrpo.judges.base import AnswerJudge, Verdict, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.judger import JudgerJudge
from agentgrpo.judges.normalise import words
from agentgrpo.judges.route import Route
from agentgrpo.types import Episode, Exit, Message, Task


class Questions:
    """The mean of another judge's grades over the questions of a task. Each question is a task of its own for it: id
    "<task>#<i>", the question's answers as references, and as data source the question's metric or else the task's, so
    that with judge=route inside each is graded by the judge of its metric. An empty answer is 0, and nobody is asked.
    """

    def __init__(self, *, judge: AnswerJudge) -> None:
        self._judge = judge
        self.judges = (judge,)
        self.canaries_per_eval = canaries_of(self.judges)
        self._routes = any(isinstance(part, Route | JudgerJudge) for part in _parts(judge))

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return await self.grade_episodes(task, [_with_answer(task, answer) for answer in answers])

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Verdict]:
        rows = await self.grades(task, episodes)
        return [
            Verdict(score=math.fsum(row) / len(row), detail=", ".join(f"#{i} {grade:g}" for i, grade in enumerate(row)))
            for row in rows
        ]

    async def grades(self, task: Task, episodes: Sequence[Episode]) -> list[tuple[float, ...]]:
        """Of each episode, the grade of each question. Raises ConfigError as `tasks_of` does, and JudgeError."""
        asked = self.tasks_of(task)
        answers = [split(episode.answer or "", len(asked)) for episode in episodes]
        given = [
            [replace(e, task=of, answer=texts[i]) for e, texts in zip(episodes, answers, strict=True)]
            for i, of in enumerate(asked)
        ]
        found = await asyncio.gather(*map(self._grade, asked, given), return_exceptions=True)
        for column in found:  # after all of them have ended: none is left running
            if isinstance(column, BaseException):
                raise column
        columns = [column for column in found if not isinstance(column, BaseException)]
        return list(zip(*columns, strict=True))

    def tasks_of(self, task: Task) -> list[Task]:
        """Its questions. Raises ConfigError for one that names a metric where no judge is chosen by it, and DataError
        for a task without questions."""
        return [self._task(task, i, question) for i, question in enumerate(questions_of(task))]

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def _task(self, task: Task, number: int, question: Question) -> Task:
        if question.metric and not self._routes:
            raise ConfigError(
                f"task {task.id}: question {number} is to be graded by '{question.metric}', and judge.judge is one for "
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

    async def _grade(self, of: Task, episodes: Sequence[Episode]) -> list[float]:
        """Those of one question."""
        given = [e for e in episodes if words(e.answer or "")]
        verdicts = await grade_episodes(self._judge, of, given) if given else []
        if len(verdicts) != len(given):
            raise JudgeError(
                f"task {of.id}: the judge gave {len(verdicts)} grades for {len(given)} answers; repair the judge",
                kind="bad_verdict",
            )
        scores = iter(verdicts)
        return [next(scores).score if words(e.answer or "") else 0.0 for e in episodes]


def _parts(judge: AnswerJudge) -> Iterator[AnswerJudge]:
    yield judge
    for part in getattr(judge, "judges", ()):
        yield from _parts(part)


def _with_answer(task: Task, answer: str) -> Episode:
    return Episode(task=task, sample_index=0, branches=(), answer=answer, exit=Exit.ANSWERED, metrics={})
