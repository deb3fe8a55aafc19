"""Unmodified agents, written with published packages, trained for three steps on a tiny model."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.records.trajectories import read_trajectories
from tests.environments.program.played import END, SpellingEngine, play
from tests.environments.program.training import trained

AGENTS = "tests.environments.program.agents"
CALLS = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+2"}}\n</tool_call>' + END
NEEDS = {
    "with_openai": ["openai"],
    "with_openai_agents": ["agents"],
    "with_langgraph": ["langgraph", "langchain_openai"],
    "with_pydantic_ai": ["pydantic_ai", "openai"],
    "with_smolagents": ["smolagents", "openai"],
}


def check(run: Path) -> None:
    """Exact log-probs, one branch each, and what is recorded as sampled."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3
    for step in steps:
        assert (step["program/branches"], step["program/continued_share"]) == (1.0, 1.0)
        assert step["agent/unattributed_tokens"] == 0.0
        assert step["policy/logprob_gap_max"] <= 1e-4
    for i in range(3):
        for record in read_trajectories(run / "trajectories" / f"train-{i:06d}.jsonl"):
            [branch] = record.branches
            assert any(segment.sampled for segment in branch.segments)
            assert record.error is None


APPENDING = [
    ("with_openai", "run"),
    ("with_openai", "stream"),
    ("with_openai_agents", "run"),
    ("with_openai_agents", "stream"),
    ("with_langgraph", "run"),
    ("with_langgraph", "stream"),
    ("with_pydantic_ai", "run"),
]
"""Agents that only append to their history."""


def program(agent: str, ask: str) -> Any:
    """Skips where its package is missing."""
    for package in NEEDS[agent]:
        pytest.importorskip(package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are not ours
        return getattr(importlib.import_module(f"{AGENTS}.{agent}"), ask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("agent", "ask"), APPENDING)
def test_an_unmodified_agent_is_trained(desk: Path, agent: str, ask: str) -> None:
    program(agent, ask)
    check(trained(f"environment.function={AGENTS}.{agent}:{ask}", "reward=correctness", run="run"))


@pytest.mark.slow
def test_what_is_streamed_is_the_same_run(desk: Path) -> None:
    program("with_openai", "run")
    for ask in ("run", "stream"):
        trained(f"environment.function={AGENTS}.with_openai:{ask}", "reward=correctness", run=ask)
    for i in range(3):
        name = f"trajectories/train-{i:06d}.jsonl"
        assert Path("run", name).read_bytes() == Path("stream", name).read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("agent", "ask"), APPENDING)
async def test_its_calls_are_made_and_its_history_is_what_was_sampled(agent: str, ask: str) -> None:
    engine = SpellingEngine([CALLS, CALLS.replace("1+2", "4+5"), f"It is 9.{END}"])
    episode = await play(program(agent, ask), engine)
    [branch] = episode.branches
    assert [s.token_ids for s in episode.turns] == engine.answered
    assert (episode.metrics["continued_share"], episode.metrics["unattributed_tokens"]) == (1.0, 0.0)
    told = [s.text for s in branch.segments if s.role == "tool"]
    assert [text[text.index("<tool_response>") :][16:18] for text in told[:2]] == ["3\n", "9\n"]
    assert episode.answer == "It is 9."


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_a_history_that_a_framework_rewrites_is_not_trained_twice() -> None:
    final = CALLS.replace("calculator", "final_answer").replace("expression", "answer")
    engine = SpellingEngine([CALLS, final])
    episode = await play(program("with_smolagents", "run"), engine, ignore=("tool_choice",))
    assert [s.token_ids for s in episode.turns] == engine.answered
    assert len(episode.branches) == 2
    assert episode.metrics["continued_share"] == 0.0
    assert episode.metrics["unattributed_tokens"] > 0
