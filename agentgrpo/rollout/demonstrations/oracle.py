"""Demonstrations by the task set itself: its demonstrator acts in the run's environment in place of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import EpisodeGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import Scripted
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.rollout.demonstrations.base import Demonstrations, demonstrated
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.openings import overlong
from agentgrpo.tasks.base import SPLITS, DemonstratedDataset, Demonstrator, TaskDataset, ToolDemonstrator


class Oracle:
    """Demonstrations of the training tasks by the task set's ideal policy."""

    def __init__(self, *, dataset: TaskDataset) -> None:
        """Raises ConfigError for a task set without a demonstrator."""
        if not isinstance(dataset, DemonstratedDataset):
            raise ConfigError(
                "demonstrations=oracle, and this task set demonstrates nothing; give conversations: "
                "demonstrations=chat demonstrations.path=FILE"
            )
        self._dataset = dataset
        self.fingerprint = dataset.fingerprint

    def by(self, policy: PolicyRunner, settings: RolloutSettings) -> Demonstrations:
        engine = Scripted(
            renderer=policy.renderer,
            oracle=ideal_of(self._dataset, policy.renderer),
            context_limit=policy.engine.max_context,
        )
        runner = PolicyRunner(environment=policy.environment, engine=engine, renderer=policy.renderer)

        async def show(tasks: Sequence[Task]) -> list[EpisodeGroup]:
            groups = await run_groups(
                runner,
                tasks,
                group_size=1,
                stream="demonstrations",
                sampling=SamplingParams(max_tokens=policy.engine.max_context),
                max_concurrent_episodes=settings.max_concurrent_episodes,
                episode_timeout_s=settings.episode_timeout_s,
                episode_retries=settings.episode_retries,
            )
            return [EpisodeGroup(task=g.task, episodes=tuple(map(demonstrated, g.episodes))) for g in groups]

        tasks = self._dataset.split("train")
        long = overlong(runner, tasks)
        notes = [long.line("training tasks", "left out of training")] if long.ids else []
        return Demonstrations(tasks=long.others(tasks), show=show, notes=notes)


def ideal_of(dataset: TaskDataset, renderer: Renderer) -> Callable[[str, str], str] | None:
    """Return a function (task id, context) -> the ideal next turn, in the renderer's format; None if the data set has
    no ideal policy. The function raises ConfigError for a task that is not in the data set."""
    if not isinstance(dataset, DemonstratedDataset):
        return None
    shown = dataset

    @cache
    def demonstrator(task_id: str) -> Demonstrator | ToolDemonstrator:
        task = next((task for name in SPLITS for task in shown.split(name) if task.id == task_id), None)
        if task is None:
            raise ConfigError(f"engine.script=oracle: the task {task_id} is not in the task set")
        return shown.oracle(task)

    def say(task_id: str, context: str) -> str:
        return said_by(demonstrator(task_id), context, renderer)

    return say


def said_by(demonstrator: Demonstrator | ToolDemonstrator, context: str, renderer: Renderer) -> str:
    """Return the text of the demonstrator's next turn, in the renderer's format."""
    speaks = cast(ToolRenderer, renderer)  # only a ToolRenderer can write turns with tool calls
    if isinstance(demonstrator, ToolDemonstrator):
        return speaks.write(demonstrator.next_turn(speaks.answered(context)))
    turn = demonstrator.act(context)
    return turn if isinstance(turn, str) else speaks.write(turn)
