"""The rollout of each step, begun when it is due or, with algorithm.max_staleness=1, one step early: during the update
of the step before, one step off-policy.

    the episodes of n are there -> n+1 is begun, sampling from v(n) -> update n, in a thread: v(n+1)
    -> the episodes of n+1 are there -> engine: v(n+1) -> canary, record, evaluation, checkpoint; nothing is in flight

Steps 0 and 1 both sample from v(0), every later step from the weights one update behind. The outcome of a rollout (its
episodes, its time limit, a bug) is handled when its step is due. A checkpoint holds v(n) beside v(n+1), but no episode
of n+1: a resumed run samples them again, with the same result.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from agentgrpo.core.errors import Preempted
from agentgrpo.core.stages import Stage, calls_on
from agentgrpo.core.types import ScoredGroup
from agentgrpo.run.context import RunContext
from agentgrpo.run.parts import Parts, StepState, sampler_weights
from agentgrpo.tasks.order import Rates
from agentgrpo.training.process_group import share

T = TypeVar("T")
ROLLOUT: Sequence[Stage] = (Stage.GENERATION, Stage.TOOLS, Stage.REWARD)
"""Stages that a rollout may wait for, highest priority first; otherwise it waits in Stage.QUEUE."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The result of one step's rollout: every group of every round."""

    scored: Sequence[ScoredGroup]
    tags: Mapping[str, float]
    seconds: Mapping[str, float]
    """Clocks, and the bills judge/*, reader/*, validity/* and spend/*."""


RollOut = Callable[[int, Rates], Coroutine[Any, Any, Rollout]]
"""(step, solve rates of its tasks) -> its rollout; if cancelled, it stops everything that it started."""


class Rollouts:
    """Runs at most one rollout at a time. Call `close` when no step follows."""

    def __init__(self, parts: Parts, ctx: RunContext, roll_out: RollOut) -> None:
        self._parts, self._ctx, self._roll_out = parts, ctx, roll_out
        self._running: asyncio.Task[Rollout] | None = None
        self._step = 0
        """Step of the running rollout."""
        self._thread: ThreadPoolExecutor | None = None
        if parts.trainer.algorithm.max_staleness:
            # One thread with as many compute threads as the main thread has: otherwise the bits might differ.
            self._thread = ThreadPoolExecutor(
                1, "agentgrpo-update", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
            )

    def begin(self, step: int, rates: Rates) -> None:
        rolling = asyncio.wait_for(self._roll_out(step, rates), self._parts.run.step_timeout_s)
        with calls_on(self._parts.clock):
            self._running = asyncio.get_running_loop().create_task(rolling, name=f"agentgrpo-rollout-{step}")
        self._step = step

    async def of(self, step: int, rates: Rates) -> Rollout:
        """Return the rollout of `step`, which is due, or raise its error; TimeoutError after run.step_timeout_s."""
        if self._running is None or self._step != step:  # a step skipped by a guard leaves its rollout behind
            await self.abandon()
            self.begin(step, rates)
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(f"step {step}"):
            try:
                assert self._running is not None
                return await self._running
            finally:
                await self.abandon()

    def begin_early(self, step: int, state: StepState) -> StepState:
        """Begin the rollout of `step`, the next one, if steps overlap and there is such a step. Return that step's
        state: `state`, with the sampler's weights if checkpoints need them."""
        if self._thread is None or step >= self._parts.run.max_steps:
            return state
        self.begin(step, state.rates)
        if not self._parts.run.checkpoint_every:
            return state
        return replace(state, sampler=sampler_weights(self._parts.trainer.policy))

    async def beside(self, update: Callable[[], T]) -> T:
        """Return or raise the result of `update`. If steps overlap, it runs in a thread and is always waited for,
        because a thread cannot be stopped."""
        if self._thread is None:
            return update()
        with self._parts.clock.stage(Stage.UPDATE):
            return await asyncio.get_running_loop().run_in_executor(self._thread, update)

    async def settle(self) -> None:
        """Wait until nothing samples, so that weights may be exchanged. A stop request abandons the running rollout,
        which a resumed run samples again."""
        if self._running is None:
            return
        label = f"step {self._step}"
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(label):
            try:
                await self._ctx.do(f"the rollout of {label}", _done(self._running))
            except Preempted:  # raised again as soon as the step is recorded
                await self.abandon()

    async def abandon(self) -> None:
        """Cancel the running rollout, if there is one, and discard it."""
        if self._running is not None:
            running, self._running = self._running, None
            await asyncio.sleep(0)  # let it begin: the other processes wait for its part, even an empty one
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        await self.abandon()
        if self._thread is not None:
            self._thread.shutdown()


async def _done(task: asyncio.Task[Rollout]) -> None:
    await asyncio.wait((task,))


# --- The time that a rollout takes, and its bills.


@contextmanager
def taking(seconds: Counter[str], name: str) -> Iterator[None]:
    """Add the time spent inside to `seconds[name]`."""
    began = time.monotonic()
    yield
    seconds.update({name: time.monotonic() - began})


def counted(parts: Parts) -> Mapping[str, float]:
    """Return the counts of judge, meter and environment so far in this process: judge/*, spend/* and others."""
    judge = parts.reward.judge_counts()
    spent = parts.meter.bill() if parts.meter is not None else {}
    bills = {"judge": judge, "spend": spent}
    named = {f"{of}/{name}": count for of, bill in bills.items() for name, count in bill.items()}
    return {**named, **parts.runner.environment.counts()}


async def bill_since(parts: Parts, before: Mapping[str, float]) -> Mapping[str, float]:
    """Return the growth of each of `counted` since `before`, over all processes. A cached answer costs nothing, so a
    repeated run pays less: hence bills are recorded beside the clocks."""
    now = counted(parts)
    if not now:
        return {}

    async def own(processes: Sequence[int]) -> list[dict[str, float]]:
        return [{name: count - before.get(name, 0.0) for name, count in now.items()} for _ in processes]

    total: Counter[str] = Counter()
    for bill in await share(parts.world, range(parts.world.size), own):
        total.update(bill)
    return total
