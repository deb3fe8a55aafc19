"""The order in which training meets its tasks: a pure function of (seed, step), so that resuming takes no more than a
step number.

Each epoch is a permutation of the task indices, drawn from (seed, epoch). With strata, the permutation deals the strata
out evenly, so that every run of consecutive tasks (hence every batch) holds each stratum in its share of the data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from agentgrpo.errors import ConfigError, DataError
from agentgrpo.tasks.chance import generator
from agentgrpo.types import Task


def permutation(num_tasks: int, *, seed: int, epoch: int, strata: Sequence[Hashable] | None = None) -> list[int]:
    """Task indices in the order of one epoch; `strata[i]` is the stratum of task i (None: no strata).

    The k-th of a stratum's n tasks is dealt to position (k + u) / n of the epoch, u in [0, 1) drawn per stratum:
    any window of w tasks holds w * n / num_tasks of the stratum, give or take one per boundary."""
    if strata is None:
        strata = [0] * num_tasks
    if len(strata) != num_tasks:
        raise DataError(f"{len(strata)} strata for {num_tasks} tasks; give one per task")
    members: dict[Hashable, list[int]] = {}
    for task, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(task)
    placed: list[tuple[float, int, int]] = []
    for number, tasks in enumerate(members.values()):
        rng = generator("task order", seed, epoch, number)
        rng.shuffle(tasks)
        offset = rng.random()
        placed += [((k + offset) / len(tasks), number, task) for k, task in enumerate(tasks)]
    return [task for _, _, task in sorted(placed)]


class TaskOrder:
    """Which tasks each step of a run takes: no task twice in a step, for task and sample index name its random numbers.
    An epoch ends with its last whole batch; the few tasks left over have their turn in other epochs.

    `stratify_by`: the Task.metadata key that names a task's stratum. Raises DataError for no tasks or a missing key,
    ConfigError for more tasks per step than there are."""

    def __init__(
        self, tasks: Sequence[Task], *, tasks_per_step: int, seed: int, stratify_by: str | None = None
    ) -> None:
        if not tasks:
            raise DataError("there are no tasks to train on; give a task set with a non-empty train split")
        if not 1 <= tasks_per_step <= len(tasks):
            raise ConfigError(
                f"rollout.tasks_per_step={tasks_per_step}; 1 to {len(tasks)} are allowed, the number of training tasks"
            )
        self._tasks, self._tasks_per_step, self._seed = tasks, tasks_per_step, seed
        self._strata = None if stratify_by is None else [_stratum(task, stratify_by) for task in tasks]
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def take(self, step: int) -> list[Task]:
        """The tasks of a step, `tasks_per_step` of them."""
        cursor = self.cursor(step)
        first = cursor["index"]
        return [self._tasks[i] for i in self._epoch(cursor["epoch"])[first : first + self._tasks_per_step]]

    def cursor(self, step: int) -> dict[str, int]:
        """Where the order stands before `step`: whole epochs done, and tasks taken of the next one."""
        epoch, batch = divmod(step, len(self._tasks) // self._tasks_per_step)
        return {"epoch": epoch, "index": batch * self._tasks_per_step}

    def _draw_epoch(self, epoch: int) -> list[int]:
        return permutation(len(self._tasks), seed=self._seed, epoch=epoch, strata=self._strata)


def _stratum(task: Task, key: str) -> Hashable:
    if key not in task.metadata:
        raise DataError(
            f"rollout.stratify_by={key}, but task '{task.id}' has no such metadata (it has "
            f"{', '.join(task.metadata) or 'none'}); choose a key that every task has, or null"
        )
    value: Hashable = task.metadata[key]
    return value
