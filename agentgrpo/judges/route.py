"""A judge for each kind of data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.judges.base import AnswerJudge, Verdict, canaries_of, counts_of, grade_episodes
from agentgrpo.judges.judger import source_of
from agentgrpo.types import Episode, Task


def refuse_unjudged(judge: AnswerJudge, tasks: Iterable[Task]) -> None:
    """Raise ConfigError for the first of `tasks` whose source a Route, be it within another judge, has no judge for."""
    if isinstance(judge, Route):
        for task in tasks:
            refuse_unjudged(judge.judge_of(task), [task])
        return
    inner: Sequence[AnswerJudge] = getattr(judge, "judges", ())
    tasks = list(tasks) if inner else ()
    for part in inner:
        refuse_unjudged(part, tasks)


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
