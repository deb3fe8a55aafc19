"""Infrastructure that fails: a fault that passes leaves no trace, one that stays takes its whole group along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ToolError
from agentgrpo.core.types import Episode, EpisodeGroup, Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.grpo.advantages import GroupRewards, group_zscore
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rewards.registry import TERMS, Reward
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import Drop, keep_trainable, score_groups
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.workspace import EpisodeWorkspace, Workspaces
from tests.environments.scripted import tokenizer
from tests.environments.tools.scripted import Adder, Saying, add, answer, say
from tests.runners import tool_runner

TASKS = [
    Task(id=f"t{i}", messages=(Message(role="user", content=f"What is {i} + 1?"),), references=(str(i + 1),))
    for i in range(10)
]


def unit(*key: object) -> float:
    """A number in [0, 1) that only the key determines."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest()) / 2**56


@dataclass
class Flaky:
    """say: the text in capitals, and the workspace's file; an attempt fails if `fails` says so."""

    fails: Callable[[str, str, int], bool]
    attempts: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: int = 0

    def __call__(self, text: str, workspace: EpisodeWorkspace) -> ToolResult:
        number = self.attempts[workspace.seed, text] = self.attempts.get((workspace.seed, text), 0) + 1
        if self.fails(workspace.seed, text, number):
            self.failures += 1
            raise ToolError("the server is down", kind="http_500")
        return ToolResult.ok(text.upper())


def policy(key: SeedKey, context: str) -> str:
    """Five turns: words to say, a sum, and an answer that is right in about half of the episodes."""
    if key.turn < 3:
        return say(f"word {key.turn}")
    number = int(key.task_id[1:])
    if key.turn == 3:
        return add(number, 1)
    return answer(str(number + (1 if unit("right", *key.episode) < 0.5 else 2)))


async def rollout(
    tmp_path: Path, fails: Callable[[str, str, int], bool], **options: Any
) -> tuple[list[EpisodeGroup], Flaky]:
    flaky = Flaky(fails)
    renderer = ReactRenderer(tokenizer=tokenizer())
    workspaces = Workspaces(tmp_path)
    agent = tool_runner(
        engine=ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=policy),
        renderer=renderer,
        tools={"say": Saying(flaky), "add": Adder()},
        workspaces=workspaces,
        **options,
    )
    groups = await run_groups(agent, TASKS, group_size=6, stream="train/0", sampling=SamplingParams(max_tokens=200))
    await workspaces.close()
    return groups, flaky


def without_clocks(group: EpisodeGroup) -> list[Episode]:
    return [replace(episode, timings={}) for episode in group.episodes]


async def test_faults_that_pass_leave_no_trace(tmp_path: Path) -> None:
    """Every fifth attempt fails, the retry too if its number has the lot: the episodes are those without a fault."""
    whole, none = await rollout(tmp_path, lambda key, text, number: False, tool_retries=0)
    faulty, flaky = await rollout(tmp_path, lambda key, text, number: unit(key, text, number) < 0.2, tool_retries=8)
    assert none.failures == 0
    assert flaky.failures > 30, "a fifth of 180 calls and more"
    assert [without_clocks(group) for group in faulty] == [without_clocks(group) for group in whole]
    assert all(e.failure is None for group in faulty for e in group.episodes)


async def test_faults_that_stay_take_the_group_along(tmp_path: Path) -> None:
    """Say cannot be reached from some episodes at all: their groups are dropped, and the other groups' advantages are
    what the rewards of all of their episodes give."""

    def fails(key: str, text: str, number: int) -> bool:
        return unit(key) < 0.06

    groups, flaky = await rollout(tmp_path, fails)
    reward = Reward(judge=ExactMatch(), terms={"correctness": TERMS["correctness"](weight=1.0)})
    scored = await score_groups(reward, groups)
    kept, reasons = keep_trainable(scored)
    down = {task.id for task in TASKS if any(fails(f"train/0|{task.id}|{i}", "", 1) for i in range(6))}
    assert {g.group.task.id for g, why in zip(scored, reasons, strict=True) if why is Drop.INFRASTRUCTURE} == down
    assert 0 < len(down) < len(TASKS)
    assert flaky.failures == 2 * sum(e.failure is not None for g in groups for e in g.episodes), "tried once more"
    assert {e.failure.kind for g in groups for e in g.episodes if e.failure} == {"http_500"}
    assert kept
    found = group_zscore([GroupRewards([r and r.total for r in one.rewards]) for one in kept])
    for one, advantages in zip(kept, found, strict=True):
        right = [float(unit("right", "train/0", one.group.task.id, i) < 0.5) for i in range(6)]
        assert advantages == pytest.approx(by_hand(right), abs=1e-9)


def by_hand(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (population std + 1e-6)."""
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    return [(r - mean) / (std + 1e-6) for r in rewards]
