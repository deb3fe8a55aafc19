"""A policy writes code, and tests that it never sees say what that is worth."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import EpisodeGroup, Message, Task
from agentgrpo.environments.tools.environment import ToolEnvironments
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rewards.own import EnvironmentTerm
from agentgrpo.rewards.reward import Reward
from agentgrpo.tools.files import Files
from agentgrpo.tools.hidden_tests.sandboxed import HiddenTests
from agentgrpo.tools.workspace import Workspaces
from tests.environments.scripted import tokenizer
from tests.environments.tools.scripted import STOP, answer, call, play
from tests.tools.bubblewrap import needs_bubblewrap

TESTS = """
from solution import add
def test_small(): assert add(2, 3) == 5
def test_large(): assert add(10**20, 1) == 10**20 + 1
"""
TASK = Task(
    id="add",
    messages=(Message(role="user", content="Write add(a, b) into solution.py."),),
    references=(),
    metadata={"tests": {"test_add.py": TESTS}},
)


def write(code: str) -> str:
    return call("write_file", json.dumps({"path": "solution.py", "content": code})) + STOP


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b): return a + b\n", 1.0),
        ("def add(a, b): return 5\n", 0.5),
        ("import os\nos._exit(0)\n", 0.0),
    ],
)
async def test_what_the_policy_has_written_is_worth_the_tests_that_pass(
    code: str, share: float, tmp_path: Path
) -> None:
    hidden = HiddenTests()
    files = Files().tools
    played = await play(write(code), answer("done"), tmp_path=tmp_path, tools=files, task=TASK, tests=hidden)
    episode = played.episode
    assert (episode.metrics["tests_passed"], episode.metrics["tests_failed"]) == (share, 2 * (1 - share))
    reward = Reward(judge=ExactMatch(), terms={"tests": EnvironmentTerm("reward", weight=1.0)})
    scored = await reward.score(EpisodeGroup(task=TASK, episodes=(episode,)))
    assert [result.total for result in scored.rewards if result] == [share]
    assert not any("test_large" in segment.text for branch in episode.branches for segment in branch.segments)
    await hidden.close()


@needs_bubblewrap
async def test_code_in_the_answer_is_a_file_for_the_tests(tmp_path: Path) -> None:
    hidden = HiddenTests(answer_file="solution.py")
    said = answer("Here it is:\n```python\ndef add(a, b): return a + b\n```")
    played = await play(said, tmp_path=tmp_path, task=TASK, tests=hidden)
    assert played.episode.metrics["tests_passed"] == 1.0
    await hidden.close()


def made(**node: Any) -> ToolEnvironments:
    given = {"renderer": ReactRenderer(tokenizer=tokenizer()), "tools": {}, "workspaces": Workspaces()}
    built: ToolEnvironments = build_node("environment", {"name": "tools", **node}, **given)
    return built


def test_by_default_there_are_none() -> None:
    assert made(tests={"name": "none"}).tests is None
    assert made().figures.quality == "success"


def test_tests_are_what_policies_are_compared_by() -> None:
    environment = made(tests={"name": "sandbox", "sandbox": "unsafe_subprocess"})
    figures = environment.figures
    assert (figures.quality, figures.is_graded, figures.headline[0]) == ("tests_passed", False, "tests_passed")
    assert {"reward", "tests_passed", "tests_failed"} <= environment.metrics
    asyncio.run(environment.close())


def test_a_task_without_tests_is_refused_before_the_run() -> None:
    environment = made(tests={"name": "sandbox", "sandbox": "unsafe_subprocess"})
    environment.rehearse(TASK, max_context=4096)
    with pytest.raises(DataError, match="task add has no tests"):
        environment.rehearse(replace(TASK, metadata={}), max_context=4096)
    asyncio.run(environment.close())


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed"):
        made(tests={"name": "sandbox", "sandbox": "docker"})
