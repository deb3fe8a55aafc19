"""Where a step's wall time goes: a clock that shares it out among stages, so that they add up to it exactly.

    clock.stage(RECORDS)      a stretch of work with one thing going on; an inner stage's time is not its outer's
    clock.call(GENERATION)    one of many calls in flight; it has the time only inside a stage that says `calls_first`
    calling(GENERATION)       the same on the clock of whoever runs the episodes (calls_on), if there is one

Every nanosecond between two laps belongs to exactly one stage: that of the innermost `stage`, or OTHER outside of all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from typing import Protocol


class Stage(StrEnum):
    """What a training step waits for."""

    GENERATION = "generation"
    """Of the rollout: at least one turn is being sampled. Tool time hidden behind it counts here, for the step does not
    wait for that."""
    TOOLS = "tools"
    """Of the rollout: nothing is being sampled, and at least one retriever, reranker, fetcher, tool or reader
    is asked."""
    QUEUE = "queue"
    """Of the rollout: neither; limits of concurrency, the agent's own code."""
    REWARD = "reward"
    """Judges and reward terms."""
    PACK = "pack"
    """Samples to tensors on the device."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    """Gradient norm, clipping and update."""
    UPDATE = "update"
    """All of an update that has the next rollout beside it (algorithm.max_staleness=1): what happens at once is not
    told apart. What the step waits for the rollout after that counts as the rollout's."""
    SYNC = "sync"
    """New weights into the engine, and the canary that checks them."""
    RECORDS = "records"
    """Trajectories, metrics, trackers and the screen."""
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    """Of the dev split."""
    OTHER = "other"


class Clock(Protocol):
    def stage(self, stage: Stage, *, calls_first: Sequence[Stage] = ()) -> AbstractContextManager[None]:
        """The time inside is `stage`'s, but for inner stages. calls_first: while a `call` of one of these is in flight,
        it is that one's, the first of several."""
        ...

    def call(self, stage: Stage) -> AbstractContextManager[None]:
        """One call of this kind is in flight; calls may overlap in any way."""
        ...

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap (or the start): their `total`, then every stage. Empty where none are taken."""
        ...


class NoClock:
    """Takes no time, in both senses."""

    def stage(self, stage: Stage, *, calls_first: Sequence[Stage] = ()) -> AbstractContextManager[None]:
        return nullcontext()

    def call(self, stage: Stage) -> AbstractContextManager[None]:
        return nullcontext()

    def lap(self) -> dict[str, float]:
        return {}


class StageClock:
    """For one thread. now_ns: the time in nanoseconds, whole, so that no sum is rounded. settle: awaited by the host at
    every border of a stage, so that work a device still has in hand is counted where it was ordered."""

    def __init__(
        self, *, now_ns: Callable[[], int] = time.perf_counter_ns, settle: Callable[[], object] = lambda: None
    ) -> None:
        self._now_ns, self._settle = now_ns, settle
        self._open: list[tuple[Stage, Sequence[Stage]]] = [(Stage.OTHER, ())]
        """The stages that are open, innermost last."""
        self._calls: Counter[Stage] = Counter()
        self._spent: Counter[Stage] = Counter()
        self._since = now_ns()

    @contextmanager
    def stage(self, stage: Stage, *, calls_first: Sequence[Stage] = ()) -> Iterator[None]:
        self._settle()
        self._book()
        self._open.append((stage, calls_first))
        try:
            yield
        finally:
            self._settle()
            self._book()
            self._open.pop()

    @contextmanager
    def call(self, stage: Stage) -> Iterator[None]:
        self._book()
        self._calls[stage] += 1
        try:
            yield
        finally:
            self._book()
            self._calls[stage] -= 1

    def lap(self) -> dict[str, float]:
        self._book()
        spent, self._spent = self._spent, Counter()
        return {"total": sum(spent.values()) / 1e9} | {stage.value: spent[stage] / 1e9 for stage in Stage}

    def _book(self) -> None:
        """The time since the last border goes to what was going on."""
        stage, calls_first = self._open[-1]
        now = self._now_ns()
        self._spent[next((s for s in calls_first if self._calls[s]), stage)] += now - self._since
        self._since = now


_calls_on: ContextVar[Clock | None] = ContextVar("calls_on", default=None)


@contextmanager
def calls_on(clock: Clock) -> Iterator[None]:
    """Whatever says `calling` inside, or in a task that is made inside, is counted on `clock`."""
    token = _calls_on.set(clock)
    try:
        yield
    finally:
        _calls_on.reset(token)


def calling(stage: Stage) -> AbstractContextManager[None]:
    """Around a call that an episode waits for."""
    return (_calls_on.get() or NoClock()).call(stage)
