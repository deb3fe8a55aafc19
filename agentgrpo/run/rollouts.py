"""The first half of a step: tasks to scored groups."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from agentgrpo.core.errors import Preempted
from agentgrpo.core.stages import Stage
from agentgrpo.core.types import ScoredGroup, Task
from agentgrpo.grpo.samples import is_degenerate
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import keep_informative, score_groups
from agentgrpo.run.parts import Carried, Parts, Progress, sampler_weights, with_weights
from agentgrpo.run.signals import StopRequest
from agentgrpo.services.asking import asking_step
from agentgrpo.tasks.order import Rates
from agentgrpo.training.canary import refuse_stale_weights
from agentgrpo.training.process_group import agree, agree_on, share


@dataclass(frozen=True, kw_only=True)
class RolledOut:
    """What one step's rollout brings: every group of every round."""

    scored: Sequence[ScoredGroup]
    tags: Mapping[str, float]
    seconds: Mapping[str, float]
    """Clocks, and judge/*, reader/*, validity/* and spend/*: the bills."""


async def roll_out(parts: Parts, step: int, rates: Rates | None = None) -> RolledOut:
    """The step's tasks to scored groups. Cancelled, it stops everything it started.

    Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): where a group teaches nothing, another task is rolled out in
    its task's place, in rollout.refill_rounds further rounds at most. rates: what a curriculum goes by.
    """
    scored: list[ScoredGroup] = []
    seconds: Counter[str] = Counter()
    tasks, rounds = parts.order.take(step, rates), 0
    while tasks:
        with asking_step(step):
            found = await _one_round(parts, step, tasks, seconds)
        scored, rounds = [*scored, *found], rounds + 1
        if rounds > parts.rollout.refill_rounds:
            break
        _, reasons = keep_informative(found, is_degenerate=partial(is_degenerate, algorithm=parts.trainer.algorithm))
        lacking = [g.group.task for g, reason in zip(found, reasons, strict=True) if reason is not None]
        taken = {group.group.task.id for group in scored}
        tasks = parts.order.replace(lacking, step=step, round_number=rounds, taken=taken, rates=rates)
    tags = {"rollout/rounds": float(rounds), "groups/refilled": float(len(scored) - parts.rollout.tasks_per_step)}
    return RolledOut(scored=scored, tags=tags if parts.rollout.refill_rounds else {}, seconds=seconds)


async def _one_round(parts: Parts, step: int, tasks: Sequence[Task], seconds: Counter[str]) -> list[ScoredGroup]:
    """Tasks to scored groups, in order: the same on all processes."""
    began = time.monotonic()

    async def rolled(own: Sequence[Task]) -> list[ScoredGroup]:
        groups = await run_groups(
            parts.runner,
            own,
            group_size=parts.rollout.group_size,
            stream=f"train/{step}",
            sampling=parts.sampling,
            max_concurrent_episodes=parts.rollout.max_concurrent_episodes,
            episode_timeout_s=parts.rollout.episode_timeout_s,
            episode_retries=parts.rollout.episode_retries,
        )
        between = time.monotonic()
        with parts.clock.call(Stage.REWARD):
            scored = await score_groups(parts.reward, groups)
        seconds.update({"time/generation": between - began, "time/reward": time.monotonic() - between})
        return scored

    counted = _counts(parts)
    scored = await share(parts.world, tasks, rolled)
    seconds.update(await _bill(parts, counted))
    return scored


async def _bill(parts: Parts, before: Mapping[str, float]) -> Mapping[str, float]:
    """judge/*, and what else is counted: by how much since `before`, on all processes together. An answer that was kept
    costs nothing, so a run that is done again pays less: that is why this stands beside the clocks."""
    now = _counts(parts)
    if not now:
        return {}

    async def own(processes: Sequence[int]) -> list[dict[str, float]]:
        return [{name: count - before.get(name, 0.0) for name, count in now.items()} for _ in processes]

    total: Counter[str] = Counter()
    for bill in await share(parts.world, range(parts.world.size), own):
        total.update(bill)
    return total


def _counts(parts: Parts) -> Mapping[str, float]:
    """What the judge, the meter and the environment have counted so far in this process."""
    judge = parts.reward.judge_counts()
    spent = parts.meter.bill() if parts.meter is not None else {}
    bills = {"judge": judge, "spend": spent}
    named = {f"{of}/{name}": count for of, bill in bills.items() for name, count in bill.items()}
    return {**named, **parts.runner.environment.counts()}


# --- Each step's rollout, begun when it is due or, with algorithm.max_staleness=1, one step ahead: beside the update of
# the step before, one step off-policy.
#
#     the episodes of n are there -> n+1 is begun, sampling from v(n) -> update n, in a thread: v(n+1)
#     -> the episodes of n+1 are there -> engine: v(n+1) -> canary, record, evaluation, checkpoint; nothing is in flight
#
# Steps 0 and 1 both sample from v(0), every later one from the weights one update behind. How a rollout ended (its
# episodes, its time limit, a bug) is looked at when its step is due. A checkpoint holds v(n) beside v(n+1), and none of
# the episodes of n+1: whoever resumes samples them again, which gives the same ones.

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
