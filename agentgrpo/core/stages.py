"""A clock that shares a step's wall time out among stages, so that the stages add up to it exactly.

    clock.stage(RECORDS)      a stretch of one kind of work; the time of an inner stage does not count for the outer
    clock.call(GENERATION)    one of many calls in flight; it gets the time only inside a stage with `calls_first`
    calling(GENERATION)       the same on the clock that `calls_on` has set, if any

Every nanosecond between two laps belongs to exactly one stage: the innermost `stage` or a call it puts first, or OTHER.
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
    """The stages of a training step."""

    GENERATION = "generation"
    """Rollout: at least one turn is being sampled. Tool calls at the same time count here, because the step does not
    wait for them."""
    TOOLS = "tools"
    """Rollout: no turn is being sampled, and a retriever, reranker, fetcher, tool or reader is being called."""
    QUEUE = "queue"
    """Rollout: neither sampling nor calls; waiting for concurrency limits, or the agent's own code."""
    REWARD = "reward"
    """Judges and reward terms."""
    PACK = "pack"
    """Packing samples into tensors on the device."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    """Gradient norm, clipping and update."""
    UPDATE = "update"
    """A whole update that runs beside the next rollout (algorithm.max_staleness=1): simultaneous work is not separated.
    Further waiting for the rollout, after the update, counts as rollout."""
    SYNC = "sync"
    """Copying new weights into the engine, and the canary that checks them."""
    RECORDS = "records"
    """Trajectories, metrics, trackers and the screen."""
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    """Evaluation on the dev split."""
    OTHER = "other"


class Clock(Protocol):
    def stage(self, stage: Stage, *, calls_first: Sequence[Stage] = ()) -> AbstractContextManager[None]:
        """Count the time inside for `stage`, inner stages left out. calls_first: while a `call` of one of these stages
        is in flight, the time counts for it instead, for the first if there are several."""
        ...

    def call(self, stage: Stage) -> AbstractContextManager[None]:
        """Count one call of this stage as in flight; calls may overlap in any way."""
        ...

    def lap(self) -> dict[str, float]:
        """Return the seconds since the last lap (or the start): `total`, then every stage. A NoClock returns {}."""
        ...


class NoClock:
    """A clock that measures nothing."""

    def stage(self, stage: Stage, *, calls_first: Sequence[Stage] = ()) -> AbstractContextManager[None]:
        return nullcontext()

    def call(self, stage: Stage) -> AbstractContextManager[None]:
        return nullcontext()

    def lap(self) -> dict[str, float]:
        return {}


class StageClock:
    """A clock for one thread. now_ns: the time in whole nanoseconds, so that no sum is rounded. settle: called at every
    border of a stage to wait for the device, so that its pending work counts for the stage that ordered it."""

    def __init__(
        self, *, now_ns: Callable[[], int] = time.perf_counter_ns, settle: Callable[[], object] = lambda: None
    ) -> None:
        self._now_ns, self._settle = now_ns, settle
        self._open: list[tuple[Stage, Sequence[Stage]]] = [(Stage.OTHER, ())]
        """Open stages, innermost last."""
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
        """Add the time since the last border to the stage that it belongs to."""
        stage, calls_first = self._open[-1]
        now = self._now_ns()
        self._spent[next((s for s in calls_first if self._calls[s]), stage)] += now - self._since
        self._since = now


_calls_on: ContextVar[Clock | None] = ContextVar("calls_on", default=None)


@contextmanager
def calls_on(clock: Clock) -> Iterator[None]:
    """Count every `calling` inside the block, or in a task that is made inside, on `clock`."""
    token = _calls_on.set(clock)
    try:
        yield
    finally:
        _calls_on.reset(token)


def calling(stage: Stage) -> AbstractContextManager[None]:
    """Count a call that an episode waits for."""
    return (_calls_on.get() or NoClock()).call(stage)
