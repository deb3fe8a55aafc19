"""The order of the training tasks: a pure function of (seed, step) and, with a curriculum, of the correctness measured
so far. Resuming needs nothing else.

Each epoch is a permutation of the task indices, drawn from (seed, epoch). With strata, the permutation deals the strata
out evenly, so that every run of consecutive tasks (hence every batch) holds each stratum in its share of the data. A
curriculum keeps the number of tasks that each stratum has in a step, and draws the tasks within each stratum."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import ScoredGroup, Task
from agentgrpo.tasks.mixture import MixedOrder, Mixture

# --- Curriculum by measured difficulty: tasks solved sometimes come more often than tasks solved always or never,
# because only they tell good attempts from bad ones.
#
#     rate(task)   <- memory * rate + (1 - memory) * mean correctness of its latest group; that mean itself at first
#     weight(task)  = FLOOR + (1 - FLOOR) * (1 - |rate - target| / max(target, 1 - target));  1 without a rate
#
# A step's tasks are drawn with these weights, without replacement.

FLOOR = 0.05
"""Weight of a task at the greatest distance from the target: mastered and hopeless tasks still come now and then."""

Rates = Mapping[str, float]
"""Task id -> running mean of correctness; untried tasks are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """target: the rate with the greatest weight, in [0, 1]. memory: weight of the old rate in the new one, in [0,
    1)."""

    target: float = 0.5
    memory: float = 0.5

    def weight(self, rate: float | None) -> float:
        """The weight of a task, in (0, 1]. An untried task has weight 1: its rate may be at the target."""
        if rate is None:
            return 1.0
        return FLOOR + (1 - FLOOR) * (1 - abs(rate - self.target) / max(self.target, 1 - self.target))

    def observe(self, rates: Rates, scored: Iterable[ScoredGroup]) -> dict[str, float]:
        """Return `rates` updated with these groups. Unscored episodes are ignored."""
        after = dict(rates)
        for group in scored:
            grades = [r.correctness for r in group.rewards if r is not None]
            if grades:
                task, mean = group.group.task.id, fmean(grades)
                after[task] = self.memory * after[task] + (1 - self.memory) * mean if task in after else mean
        return after


def curriculum_of(settings: RolloutSettings) -> Curriculum | None:
    """The curriculum of the settings group `rollout`; None = all tasks in turn."""
    if settings.curriculum == "none":
        return None
    return Curriculum(target=settings.curriculum_target, memory=settings.curriculum_memory)


def permutation(
    num_tasks: int, *, seed: int, epoch: int, strata: Sequence[Hashable] | None = None, key: str | None = None
) -> list[int]:
    """Task indices in the order of one epoch; `strata[i]` is the stratum of task i (None: no strata). key: a further
    part of the seed, for a separate order.

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
        rng = generator("task order", seed, epoch, number, *([] if key is None else [key]))
        rng.shuffle(tasks)
        offset = rng.random()
        placed += [((k + offset) / len(tasks), number, task) for k, task in enumerate(tasks)]
    return [task for _, _, task in sorted(placed)]


class TaskOrder:
    """Chooses the tasks of each step. No task comes twice in a step, because task and sample index identify an
    episode's random numbers. An epoch ends with its last whole batch; the few tasks left over come in other epochs.

    `stratify_by`: the Task.metadata key that names a task's stratum. `mixture`: sources take turns by weight, each with
    separate epochs. Raises DataError for no tasks or a missing key, ConfigError if a step takes more tasks than there
    are."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        tasks_per_step: int,
        seed: int,
        stratify_by: str | None = None,
        curriculum: Curriculum | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        if not tasks:
            raise DataError("there are no tasks to train on; give a task set with a non-empty train split")
        if not 1 <= tasks_per_step <= len(tasks):
            raise ConfigError(
                f"rollout.tasks_per_step={tasks_per_step}; 1 to {len(tasks)} are allowed, the number of training tasks"
            )
        self.curriculum = curriculum
        self._tasks, self._tasks_per_step, self._seed = tasks, tasks_per_step, seed
        self._stratify_by, self._mixture = stratify_by, mixture
        is_plain = stratify_by is None and mixture is None
        self._strata = None if is_plain else [self._stratum(task) for task in tasks]
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)
        self._mixed = None if mixture is None else self._mix(mixture)

    def take(self, step: int, rates: Rates | None = None) -> list[Task]:
        """Return the `tasks_per_step` tasks of a step. rates: the measured correctness, for a curriculum."""
        cursor = self.cursor(step)
        first = cursor["index"]
        if self._mixed is None:
            in_turn = self._epoch(cursor["epoch"])[first : first + self._tasks_per_step]
        else:
            in_turn = self._mixed.take(step)
        if self.curriculum is not None:
            in_turn = self._draw(Counter(map(self._stratum_of, in_turn)), (step, 0), (), rates or {})
        return [self._tasks[i] for i in in_turn]

    def replace(
        self, tasks: Sequence[Task], *, step: int, round_number: int, taken: Collection[str], rates: Rates | None = None
    ) -> list[Task]:
        """Return replacements for `tasks` of a step: tasks of the same strata whose ids are not in `taken`; fewer if
        the strata run out. round_number: 1, 2, ... counts the step's replacements."""
        wanted = Counter(self._stratum(task) for task in tasks)
        return [self._tasks[i] for i in self._draw(wanted, (step, round_number), taken, rates or {})]

    def cursor(self, step: int) -> dict[str, int]:
        """The position before `step`: finished epochs, and tasks taken from the next one. For a mixture it is counted
        as if all tasks came equally often."""
        epoch, batch = divmod(step, len(self._tasks) // self._tasks_per_step)
        return {"epoch": epoch, "index": batch * self._tasks_per_step}

    def _mix(self, mixture: Mixture) -> MixedOrder:
        members: dict[str, list[int]] = {}
        for i, task in enumerate(self._tasks):
            members.setdefault(mixture.source_of(task), []).append(i)

        def permute(source: str, epoch: int) -> list[int]:
            of = members[source]
            strata = None if self._strata is None else [self._strata[i] for i in of]
            # the source is part of the seed, or two sources of equal size would have the same order
            return [of[i] for i in permutation(len(of), seed=self._seed, epoch=epoch, strata=strata, key=source)]

        sizes = {source: len(of) for source, of in members.items()}
        return MixedOrder(sizes, mixture=mixture, tasks_per_step=self._tasks_per_step, permute=permute)

    def _stratum(self, task: Task) -> Hashable:
        """The stratum of a task: its `stratify_by` value, together with its source in a mixture."""
        said = None if self._stratify_by is None else _stratum(task, self._stratify_by)
        return said if self._mixture is None else (self._mixture.source_of(task), said)

    def _draw_epoch(self, epoch: int) -> list[int]:
        return permutation(len(self._tasks), seed=self._seed, epoch=epoch, strata=self._strata)

    def _stratum_of(self, index: int) -> Hashable:
        return None if self._strata is None else self._strata[index]

    def _draw(
        self, wanted: Mapping[Hashable, int], key: tuple[int, int], taken: Collection[str], rates: Rates
    ) -> list[int]:
        """Draw the wanted number of tasks of each stratum without replacement, weighted by the curriculum: those with
        the largest log(u) / weight, u in [0, 1) per task (Efraimidis and Spirakis, 2006)."""
        rng = generator("task draw", self._seed, *key)
        draws = [rng.random() for _ in self._tasks]  # taken tasks too: they change no other's draw
        ranked: dict[Hashable, list[tuple[float, int]]] = {stratum: [] for stratum in wanted}
        for i, (task, u) in enumerate(zip(self._tasks, draws, strict=True)):
            if (stratum := self._stratum_of(i)) in ranked and task.id not in taken:
                weight = 1.0 if self.curriculum is None else self.curriculum.weight(rates.get(task.id))
                ranked[stratum].append((math.log(max(u, 1e-300)) / weight, i))
        found = [row for stratum, count in wanted.items() for row in heapq.nlargest(count, ranked[stratum])]
        return [i for _, i in sorted(found, reverse=True)]


def _stratum(task: Task, key: str) -> Hashable:
    if key not in task.metadata:
        raise DataError(
            f"rollout.stratify_by={key}, but task '{task.id}' has no such metadata (it has "
            f"{', '.join(task.metadata) or 'none'}); choose a key that every task has, or null"
        )
    value: Hashable = task.metadata[key]
    return value
