"""What a data set's ideal policy says, task by task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

from agentgrpo.errors import ConfigError
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.tasks.base import SPLITS, DemonstratedDataset, Demonstrator, TaskDataset


def ideal_of(dataset: TaskDataset, renderer: Renderer) -> Callable[[str, str], str] | None:
    """(task id, context) -> its next turn, as the renderer's policy would write it; None where the data set has no
    such policy. Raises ConfigError for a task that it has not."""
    if not isinstance(dataset, DemonstratedDataset):
        return None
    shown = dataset

    @cache
    def demonstrator(task_id: str) -> Demonstrator:
        task = next((task for name in SPLITS for task in shown.split(name) if task.id == task_id), None)
        if task is None:
            raise ConfigError(f"engine.script=oracle: the task {task_id} is none of the task set's")
        return shown.oracle(task)

    def say(task_id: str, context: str) -> str:
        turn = demonstrator(task_id).act(context)
        return turn if isinstance(turn, str) else cast(ToolRenderer, renderer).write(turn)

    return say
