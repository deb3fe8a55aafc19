"""Unmodified agents, written with published packages, trained for three steps on a tiny model."""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.engines.base import Completion, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.records.trajectories import read_trajectories
from tests.environments.program.played import END, SpellingEngine, play
from tests.environments.program.training import trained

AGENTS = "tests.environments.program.agents"
CALLS = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+2"}}\n</tool_call>' + END
NEEDS = {
    "with_openai": ["openai"],
    "with_responses": ["openai"],
    "with_anthropic": ["anthropic"],
    "with_openai_agents": ["agents"],
    "with_openai_agents_by_default": ["agents"],
    "with_langgraph": ["langgraph", "langchain_openai"],
    "with_pydantic_ai": ["pydantic_ai", "openai"],
    "with_smolagents": ["smolagents", "openai"],
    "with_mini_swe_agent": ["minisweagent", "litellm"],
}


Sampled = Counter[tuple[tuple[int, ...], tuple[float, ...]]]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Sampled:
    """What the engine has sampled to train on, with its log-probs."""
    found: Sampled = Counter()
    generate = HFEngine.generate

    async def noted(self: HFEngine, context: Any, sampling: Any, key: SeedKey) -> Completion:
        completion = await generate(self, context, sampling, key)
        if key.stream.startswith("train/"):
            found[completion.token_ids, completion.logprobs] += 1
        return completion

    monkeypatch.setattr(HFEngine, "generate", noted)
    return found


def check(run: Path, sampled: Sampled, *, appends: bool = True) -> None:
    """Exact log-probs, each sampled turn recorded once as it was sampled, and one branch for who only appends."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3
    for step in steps:
        assert step["policy/logprob_gap_max"] <= 1e-4
        assert step["program/trained_branches"] == step["program/branches"]
        if appends:
            assert (step["program/branches"], step["program/continued_share"]) == (1.0, 1.0)
            assert step["agent/unattributed_tokens"] == 0.0
        else:
            assert step["program/branches"] > 1.0 > step["program/continued_share"]
    recorded: Sampled = Counter()
    for i in range(3):
        for record in read_trajectories(run / "trajectories" / f"train-{i:06d}.jsonl"):
            assert record.error is None
            turns = [segment for branch in record.branches for segment in branch.segments if segment.sampled]
            assert turns
            recorded.update((turn.token_ids, turn.logprobs or ()) for turn in turns)
    assert recorded == sampled


APPENDING = [
    ("with_openai", "run"),
    ("with_openai", "stream"),
    ("with_responses", "run"),
    ("with_responses", "stream"),
    ("with_anthropic", "run"),
    ("with_anthropic", "stream"),
    ("with_openai_agents_by_default", "run"),
    ("with_openai_agents_by_default", "stream"),
    ("with_openai_agents", "run"),
    ("with_openai_agents", "stream"),
    ("with_langgraph", "run"),
    ("with_langgraph", "stream"),
    ("with_pydantic_ai", "run"),
]
"""Agents that only append to their history."""
GIVES_UP = {"with_openai_agents_by_default"}
"""Agents that take an answer which a limit of tokens has cut for an error, as it is in Responses."""
REWRITING = {
    "with_smolagents": ["environment.ignore=[tool_choice]", "environment.max_context=8192"],
    "with_mini_swe_agent": [],
}
"""Agents that send back another history than they were given, and what they need."""


def program(agent: str, ask: str) -> Any:
    """Skips where its package is missing."""
    for package in NEEDS[agent]:
        pytest.importorskip(package)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # of packages that are not ours
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else litellm looks for prices on the network
        patch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(Path(tempfile.gettempdir(), "mini-swe-agent")))  # no home's
        patch.setenv("MSWEA_SILENT_STARTUP", "1")
        return getattr(importlib.import_module(f"{AGENTS}.{agent}"), ask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("agent", "ask"), APPENDING)
def test_an_unmodified_agent_is_trained(desk: Path, sampled: Sampled, agent: str, ask: str) -> None:
    program(agent, ask)
    given = [f"environment.function={AGENTS}.{agent}:{ask}", "reward=correctness"]
    given += ["environment.failure_reward=0.0"] * (agent in GIVES_UP)
    check(trained(*given, run="run"), sampled)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("agent", REWRITING)
def test_an_agent_that_rewrites_its_history_is_trained(desk: Path, sampled: Sampled, agent: str) -> None:
    program(agent, "run")
    given = [f"environment.function={AGENTS}.{agent}:run", "reward=correctness", *REWRITING[agent]]
    check(trained(*given, run="run"), sampled, appends=False)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["with_openai", "with_responses", "with_anthropic"])
def test_what_is_streamed_is_the_same_run(desk: Path, agent: str) -> None:
    program(agent, "run")
    for ask in ("run", "stream"):
        trained(f"environment.function={AGENTS}.{agent}:{ask}", "reward=correctness", run=ask)
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


def bash(command: str) -> str:
    return CALLS.replace("calculator", "bash").replace("expression", "command").replace("1+2", command)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_an_answer_that_a_framework_forgets_is_trained_where_it_was_given() -> None:
    engine = SpellingEngine([bash("1+2"), f"No call.{END}", bash("submit 3")])
    episode = await play(program("with_mini_swe_agent", "run"), engine)
    assert [s.token_ids for s in episode.turns] == engine.answered
    assert [sum(s.sampled for s in branch.segments) for branch in episode.branches] == [2, 1]
    assert (episode.answer, episode.metrics["unattributed_tokens"]) == ("3", 0.0)
