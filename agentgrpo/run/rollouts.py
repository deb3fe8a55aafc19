"""Each step's rollout, begun when it is due or, with algorithm.max_staleness=1, one step early: beside the update of
the step before, one step off-policy.

    the episodes of n are there -> n+1 is begun, sampling from v(n) -> update n, in a thread: v(n+1)
    -> the episodes of n+1 are there -> engine: v(n+1) -> canary, record, evaluation, checkpoint; nothing is in flight

Steps 0 and 1 both sample from v(0), every later one from the weights one update behind. How a rollout ended (its
episodes, its time limit, a bug) is looked at when its step is due. A checkpoint holds v(n) beside v(n+1), and none of
the episodes of n+1: whoever resumes samples them again, which gives the same ones.
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
"""What a rollout waits for, the first of several; else it is Stage.QUEUE."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one step's rollout brings: every group of every round."""

    scored: Sequence[ScoredGroup]
    tags: Mapping[str, float]
    seconds: Mapping[str, float]
    """Clocks, and judge/*, reader/*, validity/* and spend/*: the bills."""


RollOut = Callable[[int, Rates], Coroutine[Any, Any, Rollout]]
"""(step, solve rates of its tasks) -> its rollout; cancelled, it stops everything it started."""


class Rollouts:
    """At most one rollout is in flight. `close` when no step follows."""

    def __init__(self, parts: Parts, ctx: RunContext, roll_out: RollOut) -> None:
        self._parts, self._ctx, self._roll_out = parts, ctx, roll_out
        self._running: asyncio.Task[Rollout] | None = None
        self._step = 0
        """Of what is running."""
        self._thread: ThreadPoolExecutor | None = None
        if parts.trainer.algorithm.max_staleness:
            # One thread, with the main thread's number of compute threads: else it might compute other bits.
            self._thread = ThreadPoolExecutor(
                1, "agentgrpo-update", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
            )

    def begin(self, step: int, rates: Rates) -> None:
        rolling = asyncio.wait_for(self._roll_out(step, rates), self._parts.run.step_timeout_s)
        with calls_on(self._parts.clock):
            self._running = asyncio.get_running_loop().create_task(rolling, name=f"agentgrpo-rollout-{step}")
        self._step = step

    async def of(self, step: int, rates: Rates) -> Rollout:
        """The rollout of `step`, which is due. Raises what it ended with, TimeoutError past run.step_timeout_s."""
        if self._running is None or self._step != step:  # a step that a guard has skipped leaves its rollout behind
            await self.abandon()
            self.begin(step, rates)
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(f"step {step}"):
            try:
                assert self._running is not None
                return await self._running
            finally:
                await self.abandon()

    def begin_early(self, step: int, state: StepState) -> StepState:
        """Begin the rollout of `step`, whose turn is next, where steps overlap and there is such a step. Returns what
        that step begins with, of which `state` is the rest."""
        if self._thread is None or step >= self._parts.run.max_steps:
            return state
        self.begin(step, state.rates)
        if not self._parts.run.checkpoint_every:
            return state
        return replace(state, sampler=sampler_weights(self._parts.trainer.policy))

    async def beside(self, update: Callable[[], T]) -> T:
        """What `update` returns or raises. Where steps overlap it runs in a thread; whatever comes, it is waited for:
        a thread cannot be stopped."""
        if self._thread is None:
            return update()
        with self._parts.clock.stage(Stage.UPDATE):
            return await asyncio.get_running_loop().run_in_executor(self._thread, update)

    async def settle(self) -> None:
        """Wait until nothing samples, so that weights may be exchanged. A stop request abandons what does: it will be
        sampled again."""
        if self._running is None:
            return
        label = f"step {self._step}"
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(label):
            try:
                await self._ctx.do(f"the rollout of {label}", _done(self._running))
            except Preempted:  # raised again as soon as the step is recorded
                await self.abandon()

    async def abandon(self) -> None:
        """Nothing is in flight any more; if something was, it is forgotten."""
        if self._running is not None:
            running, self._running = self._running, None
            await asyncio.sleep(0)  # it has begun: the other processes count on its part, be it that there is none
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        await self.abandon()
        if self._thread is not None:
            self._thread.shutdown()


async def _done(task: asyncio.Task[Rollout]) -> None:
    await asyncio.wait((task,))


# --- What a rollout takes: seconds, and what was paid for.


@contextmanager
def taking(seconds: Counter[str], name: str) -> Iterator[None]:
    """The time inside is added to what `name` has taken."""
    began = time.monotonic()
    yield
    seconds.update({name: time.monotonic() - began})


def counted(parts: Parts) -> Mapping[str, float]:
    """judge/*, spend/* and what else the judge, the meter and the environment have counted so far in this process."""
    judge = parts.reward.judge_counts()
    spent = parts.meter.bill() if parts.meter is not None else {}
    bills = {"judge": judge, "spend": spent}
    named = {f"{of}/{name}": count for of, bill in bills.items() for name, count in bill.items()}
    return {**named, **parts.runner.environment.counts()}


async def bill_since(parts: Parts, before: Mapping[str, float]) -> Mapping[str, float]:
    """By how much each of `counted` has grown since `before`, on all processes. An answer that was kept costs nothing,
    so a run that is done again pays less: that is why this stands beside the clocks."""
    now = counted(parts)
    if not now:
        return {}

    async def own(processes: Sequence[int]) -> list[dict[str, float]]:
        return [{name: count - before.get(name, 0.0) for name, count in now.items()} for _ in processes]

    total: Counter[str] = Counter()
    for bill in await share(parts.world, range(parts.world.size), own):
        total.update(bill)
    return total
