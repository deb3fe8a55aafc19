"""The first half of a step: tasks to scored groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgrpo.recipes.parts import Parts
from agentgrpo.rollout import run_groups, score_groups
from agentgrpo.stages import Stage
from agentgrpo.types import ScoredGroup


@dataclass(frozen=True, kw_only=True)
class RolledOut:
    """What one step's rollout brings."""

    scored: Sequence[ScoredGroup]
    seconds: Mapping[str, float]


async def roll_out(parts: Parts, step: int) -> RolledOut:
    """Tasks of the step to scored groups. Raises TooManyFailures; cancelled, it stops everything it started."""
    began = time.monotonic()
    with parts.clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION, Stage.TOOLS)):
        groups = await run_groups(
            parts.agent,
            parts.order.take(step),
            group_size=parts.rollout.group_size,
            stream=f"train/{step}",
            sampling=parts.sampling,
            max_concurrent_episodes=parts.rollout.max_concurrent_episodes,
            episode_timeout_s=parts.rollout.episode_timeout_s,
            episode_retries=parts.rollout.episode_retries,
        )
    rolled = time.monotonic()
    with parts.clock.stage(Stage.REWARD):
        scored = await score_groups(parts.reward, groups)
    return RolledOut(
        scored=scored, seconds={"time/generation": rolled - began, "time/reward": time.monotonic() - rolled}
    )
