"""Tasks of several sources by weight: every step's batch holds each source's share, as exactly as whole tasks can.

After n steps of T tasks a source of weight w (of 1) has given n·T·w tasks, rounded down or up. That makes a release and
a deadline of each of its tasks, in steps, and of unit jobs the earliest deadline first meets them all where they can be
met (Jackson 1955; as fair scheduling does: Baruah et al., "Proportionate progress", 1996). A source that is asked for
more than it has begins again, in another order, while a larger one is still at its first epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """weights: of training, by source; at least one is above 0. key: what the sources are the keys of."""

    weights: Mapping[str, float]
    key: str = "task.sources"

    def source_of(self, task: Task) -> str:
        """What the id of a task begins with: "SOURCE:...", and where a member of a suite is a mixture itself
        "MEMBER:SOURCE:..."."""
        source, _, rest = task.id.partition(":")
        return source if source in self.weights else f"{source}:{rest.partition(':')[0]}"


Permute = Callable[[str, int], Sequence[int]]
"""(source, epoch) -> the source's tasks, as indices, in the order of that epoch."""


class MixedOrder:
    """The tasks of each step, a pure function of its number."""

    def __init__(self, sizes: Mapping[str, int], *, mixture: Mixture, tasks_per_step: int, permute: Permute) -> None:
        """sizes: number of tasks by source. Raises ConfigError where a step would take a task twice."""
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
        """Tasks of a source in one step: what its sum, rounded up, can be ahead of the one before, rounded down."""
        share = Fraction(part * self._tasks_per_step, self._whole)
        return min(math.ceil(share + Fraction(share.denominator - 1, share.denominator)), self._tasks_per_step)

    def _begin(self) -> None:
        self._step, self._taken = 0, dict.fromkeys(self._parts, 0)
        self._queues: dict[str, list[int]] = {source: [] for source in self._parts}
        self._epochs = dict.fromkeys(self._parts, 0)
        self._latest: list[int] = []

    def take(self, step: int) -> list[int]:
        """Indices of tasks, `tasks_per_step` of them, no two the same."""
        if step < self._step - 1:
            self._begin()
        while self._step <= step:
            self._latest = self._next()
            self._step += 1
        return self._latest

    def _next(self) -> list[int]:
        counts = dict.fromkeys(self._parts, 0)

        def due(source: str) -> int:
            """Tasks that are due at the end of this step and not given, times the whole."""
            given = self._taken[source] + counts[source]
            return (self._step + 1) * self._tasks_per_step * self._parts[source] - self._whole * given

        def urgency(source: str) -> tuple[int, int]:
            nth = self._taken[source] + counts[source] + 1
            return -(-nth * self._whole // (self._tasks_per_step * self._parts[source])), -due(source)

        for _ in range(self._tasks_per_step):
            counts[min((s for s in counts if due(s) > 0), key=urgency)] += 1  # the first of equals
        return [index for source, count in counts.items() for index in self._draw(source, count)]

    def _draw(self, source: str, count: int) -> list[int]:
        queue = self._queues[source]
        if len(queue) < count:
            # those that this step has already come last in the next epoch
            fresh, left = self._permute(source, self._epochs[source]), {*queue}
            queue += [i for i in fresh if i not in left] + [i for i in fresh if i in left]
            self._epochs[source] += 1
        self._queues[source] = queue[count:]
        self._taken[source] += count
        return queue[:count]
