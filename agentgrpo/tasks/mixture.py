"""Tasks of several sources by weight: every step's batch holds each source's share, rounded to whole tasks.

After n steps of T tasks a source of weight w (of 1) has given n·T·w tasks, rounded down or up. This gives each of its
tasks a release and a deadline, in steps. For unit jobs, earliest deadline first meets all deadlines if any schedule
does (Jackson 1955; used for fair scheduling by Baruah et al., "Proportionate progress", 1996). An exhausted source
begins again in another order, while a larger one is still in its first epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """weights: source -> training weight; at least one is above 0. key: the setting whose keys are the sources."""

    weights: Mapping[str, float]
    key: str = "task.sources"

    def source_of(self, task: Task) -> str:
        """The source of a task, from the beginning of its id: "SOURCE:...", or "MEMBER:SOURCE:..." if a suite's member
        is itself a mixture."""
        source, _, rest = task.id.partition(":")
        return source if source in self.weights else f"{source}:{rest.partition(':')[0]}"


Permute = Callable[[str, int], Sequence[int]]
"""(source, epoch) -> the source's tasks, as indices, in the order of that epoch."""


class MixedOrder:
    """The tasks of each step, a pure function of its number."""

    def __init__(self, sizes: Mapping[str, int], *, mixture: Mixture, tasks_per_step: int, permute: Permute) -> None:
        """sizes: number of tasks by source. Raises ConfigError if a step would take a task twice."""
        weights = {source: Fraction(str(mixture.weights[source])) for source in sizes}
        exact = {source: weight for source, weight in weights.items() if weight > 0}
        unit = math.lcm(*(share.denominator for share in exact.values()))
        self._parts = {source: int(share * unit) for source, share in exact.items()}
        self._whole, self._tasks_per_step, self._permute = sum(self._parts.values()), tasks_per_step, permute
        for source, part in self._parts.items():
            if (most := self._most(part)) > sizes[source]:
                raise ConfigError(
                    f"{mixture.key}.{source} has {sizes[source]} training questions, and its weight takes up to "
                    f"{most} of the {tasks_per_step} of a step; lower its weight or rollout.tasks_per_step"
                )
        self._begin()

    def _most(self, part: int) -> int:
        """Most tasks of a source in one step: its total after the step, rounded up, minus its total before, rounded
        down."""
        share = Fraction(part * self._tasks_per_step, self._whole)
        return min(math.ceil(share + Fraction(share.denominator - 1, share.denominator)), self._tasks_per_step)

    def _begin(self) -> None:
        self._step, self._taken = 0, dict.fromkeys(self._parts, 0)
        self._queues: dict[str, list[int]] = {source: [] for source in self._parts}
        self._epochs = dict.fromkeys(self._parts, 0)
        self._latest: list[int] = []

    def take(self, step: int) -> list[int]:
        """Return `tasks_per_step` different task indices."""
        if step < self._step - 1:
            self._begin()
        while self._step <= step:
            self._latest = self._next()
            self._step += 1
        return self._latest

    def _next(self) -> list[int]:
        counts = dict.fromkeys(self._parts, 0)

        def due(source: str) -> int:
            """Tasks due by the end of this step and not yet given, times the sum of the weights."""
            given = self._taken[source] + counts[source]
            return (self._step + 1) * self._tasks_per_step * self._parts[source] - self._whole * given

        def urgency(source: str) -> tuple[int, int]:
            nth = self._taken[source] + counts[source] + 1
            return -(-nth * self._whole // (self._tasks_per_step * self._parts[source])), -due(source)

        for _ in range(self._tasks_per_step):
            counts[min((s for s in counts if due(s) > 0), key=urgency)] += 1  # ties go to the first source
        return [index for source, count in counts.items() for index in self._draw(source, count)]

    def _draw(self, source: str, count: int) -> list[int]:
        queue = self._queues[source]
        if len(queue) < count:
            # tasks that this step already takes come last in the next epoch
            fresh, left = self._permute(source, self._epochs[source]), {*queue}
            queue += [i for i in fresh if i not in left] + [i for i in fresh if i in left]
            self._epochs[source] += 1
        self._queues[source] = queue[count:]
        self._taken[source] += count
        return queue[:count]
