"""The first half of a step: tasks to scored groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agentgrpo.agents.parts import bill_of
from agentgrpo.grpo.samples import is_degenerate
from agentgrpo.metering import asking_step
from agentgrpo.recipes.parts import Parts
from agentgrpo.recipes.together import share
from agentgrpo.rollout import keep_informative, run_groups, score_groups
from agentgrpo.stages import Stage
from agentgrpo.tasks.curriculum import Rates
from agentgrpo.types import ScoredGroup, Task


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
            parts.agent,
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
    """What the judge, the meter and the agent have counted so far in this process."""
    judge = parts.reward.judge_counts()
    spent = parts.meter.bill() if parts.meter is not None else {}
    bills = {"judge": judge, "spend": spent}
    named = {f"{of}/{name}": count for of, bill in bills.items() for name, count in bill.items()}
    return {**named, **bill_of(parts.agent)}
