"""Each step's rollout, begun when it is due or, with algorithm.max_staleness=1, one step ahead: beside the update of
the step before, one step off-policy.

    the episodes of n are there -> n+1 is begun, sampling from v(n) -> update n, in a thread: v(n+1)
    -> the episodes of n+1 are there -> engine: v(n+1) -> canary, record, evaluation, checkpoint; nothing is in flight

Steps 0 and 1 both sample from v(0), every later one from the weights one update behind. How a rollout ended (its
episodes, its time limit, a bug) is looked at when its step is due. A checkpoint holds v(n) beside v(n+1), and none of
the episodes of n+1: whoever resumes samples them again, which gives the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from agentgrpo.errors import Preempted
from agentgrpo.recipes.canary import refuse_stale_weights
from agentgrpo.recipes.carried import Carried, sampler_weights, with_weights
from agentgrpo.recipes.parts import Parts, Progress
from agentgrpo.recipes.rolling import RolledOut, roll_out
from agentgrpo.recipes.signals import StopRequest
from agentgrpo.recipes.together import agree, agree_on
from agentgrpo.stages import Stage
from agentgrpo.tasks.curriculum import Rates

T = TypeVar("T")
ROLLOUT: Sequence[Stage] = (Stage.GENERATION, Stage.TOOLS, Stage.REWARD)
"""What a rollout waits for, the first of several; else it is Stage.QUEUE."""


class Rollouts:
    """At most one rollout is in flight. `close` when no step follows."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._running: asyncio.Task[RolledOut] | None = None
        self._step = 0
        """Of what is running."""
        self._thread: ThreadPoolExecutor | None = None
        if parts.trainer.algorithm.max_staleness:
            # One thread, with the main thread's number of compute threads: else it might compute other bits.
            self._thread = ThreadPoolExecutor(
                1, "agentgrpo-update", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
            )

    async def of(self, step: int, rates: Rates) -> RolledOut:
        """The rollout of `step`, which is due. Raises what it ended with, TimeoutError past run.step_timeout_s."""
        if self._running is None or self._step != step:  # a step that a guard has skipped leaves its rollout behind
            await self.abandon()
            self._begin(step, rates)
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(f"step {step}"):
            try:
                assert self._running is not None
                return await self._running
            finally:
                await self.abandon()

    def begin_next(self, step: int, carried: Carried) -> Carried:
        """After the rollout of `step`: begin that of the next one, where steps overlap and there is one. Returns what
        `step` then carries on."""
        if self._thread is None or step + 1 >= self._parts.run.max_steps:
            return carried
        self._begin(step + 1, carried.rates)
        if not self._parts.run.checkpoint_every:
            return carried
        return replace(carried, sampler=sampler_weights(self._parts.trainer.policy))

    async def beside(self, update: Callable[[], T]) -> T:
        """What `update` returns or raises. Where steps overlap it runs in a thread; whatever comes, it is waited for:
        a thread cannot be stopped."""
        if self._thread is None:
            return update()
        with self._parts.clock.stage(Stage.UPDATE):
            return await asyncio.get_running_loop().run_in_executor(self._thread, update)

    async def settle(self, stop: StopRequest) -> None:
        """Wait until nothing samples, so that weights may be exchanged. A stop request abandons what does: it will be
        sampled again."""
        if self._running is None:
            return
        label = f"step {self._step}"
        with self._parts.clock.stage(Stage.QUEUE, calls_first=ROLLOUT), self._parts.watch.responsive(label):
            try:
                await stop.unless_stopped(_done(self._running))
            except Preempted:  # raised again as soon as the step is recorded
                await self.abandon()

    async def abandon(self) -> None:
        """Nothing is in flight any more; if something was, it is forgotten."""
        if self._running is not None:
            running, self._running = self._running, None
            await asyncio.sleep(0)  # it has begun: the other processes count on its part, be it that there is none
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def catch_up(self, progress: Progress, stop: StopRequest) -> None:
        """In a run that is resumed: begin again what had been begun ahead, with the weights it was sampled from."""
        parts, step, sampler = self._parts, progress.step, progress.carried.sampler
        if sampler is None or step >= parts.run.max_steps:
            return
        with with_weights(parts.trainer.policy, sampler):
            await self._sync(step - 1)
        self._begin(step, progress.carried.rates)
        await self.settle(stop)
        agree(parts.world, stop.refuse_to_go_on)
        await self._sync(step)

    async def _sync(self, step: int) -> None:
        parts = self._parts
        await agree_on(parts.world, parts.engine.load_weights(step))
        canary = refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, step)
        await agree_on(parts.world, canary)

    async def close(self) -> None:
        await self.abandon()
        if self._thread is not None:
            self._thread.shutdown()

    def _begin(self, step: int, rates: Rates) -> None:
        rolling = asyncio.wait_for(roll_out(self._parts, step, rates), self._parts.run.step_timeout_s)
        self._running = asyncio.get_running_loop().create_task(rolling, name=f"agentgrpo-rollout-{step}")
        self._step = step


async def _done(task: asyncio.Task[RolledOut]) -> None:
    await asyncio.wait((task,))
