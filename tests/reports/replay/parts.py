"""What the tests of single parts share: one task, an episode of it that is written and read, and a silent bar."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.records.screen import Bar
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories, write_trajectories
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import score_groups
from tests import builders

TASK = builders.task("Where was the founder of Velmor born?", "Roka", id="v")
SAMPLING = SamplingParams(max_tokens=200)
REWARD = Reward(judge=ExactMatch(), terms={"correctness": Correctness(weight=2.0)})


async def recorded(runner: Runner, path: Path, sampling: SamplingParams = SAMPLING) -> TrajectoryRecord:
    groups = await run_groups(runner, [TASK], group_size=1, stream="train/3", sampling=sampling)
    scored = await score_groups(REWARD, groups)
    write_trajectories(path, scored=scored, advantages=[[0.0]], dropped=[None], step=3, seed=0)
    [record] = read_trajectories(path)
    return record


def given() -> dict[str, Any]:
    """Arguments of Forced and Live."""
    bar = Bar(what="episodes", console=Console(file=io.StringIO()))
    return {"stream": "train/3", "sampling": SAMPLING, "rollout": RolloutSettings(), "bar": bar}
