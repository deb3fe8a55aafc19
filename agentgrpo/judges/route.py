"""A judge for each kind of data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentgrpo.dialogue import CHUNKS, QUESTIONS
from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.judges.base import AnswerJudge, Verdict, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.judger import JudgerJudge, source_of
from agentgrpo.types import Episode, Task


def refuse_unjudged(judge: AnswerJudge, tasks: Iterable[Task]) -> None:
    """Raise ConfigError for the first of `tasks` whose source a Route, be it within another judge, has no judge for,
    and where the first that a judge of one answer would get asks several questions (agentgrpo.dialogue). A judge may
    refuse tasks of its own accord: refuse_task(task) raises DataError."""
    if isinstance(judge, Route):
        for task in tasks:
            refuse_unjudged(judge.judge_of(task), [task])
        return
    asked = getattr(judge, "tasks_of", None)
    if asked is not None:  # judges.questions: each of a task's questions is a task for what is within
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
    """What a judge of the user's own makes of an episode's answer (dialogue.join) is its own business."""
    if not type(judge).__module__.startswith("agentgrpo.") or isinstance(judge, JudgerJudge):
        return
    if task is not None and {CHUNKS, QUESTIONS} <= task.metadata.keys():
        raise ConfigError(
            f"task {task.id} asks several questions, and the judge {type(judge).__name__} grades one answer: it would "
            "find none right; use judge=questions and judge.judge.name for how each is graded, or "
            "judge=questions_by_metric"
        )


class Route:
    """Each task is graded by the judge of its data source: the task's own field data_source where it has one, else the
    data set's name. A source without a judge is a mistake in the configuration, not a grade of 0: ConfigError."""

    def __init__(self, *, routes: Mapping[str, AnswerJudge]) -> None:
        if not routes:
            raise ConfigError("judge.routes is empty; name a judge for each data source: judge.routes.SOURCE.name=...")
        self._routes = dict(routes)
        self.judges = tuple(routes.values())
        self.canaries_per_eval = canaries_of(self.judges)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return await self.judge_of(task).grade(task, answers)

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Verdict]:
        return await grade_episodes(self.judge_of(task), task, episodes)

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def judge_of(self, task: Task) -> AnswerJudge:
        """Raises ConfigError for a task of a source that has none."""
        source = source_of(task)
        if source not in self._routes:
            known = ", ".join(sorted(self._routes))
            raise ConfigError(
                f"task {task.id} is from '{source}', and judge.routes has {known}; add a judge for it: "
                f"+judge.routes.{source}.name=exact_match.{did_you_mean(source, self._routes)}"
            )
        return self._routes[source]
