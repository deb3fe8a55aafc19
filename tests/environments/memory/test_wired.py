"""What the wiring makes of the agent: one reader for the policy and the oracle, none that costs for demonstrations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from agentgrpo.config.build import build_node
from agentgrpo.engines.scripted import ScriptedEngine as Script
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.wiring import Wiring
from tests.environments.memory.scripted import ScriptedReader, ScriptedValidity, tags
from tests.environments.scripted import ScriptedEngine
from tests.runners import memory_runner

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_oracle_is_the_same_agent_and_loads_no_reader_of_its_own() -> None:
    dataset = build_node("task", yaml.safe_load((CONFIGS / "task/diary.yaml").read_text()))
    agent = memory_runner(
        engine=ScriptedEngine([]), renderer=tags(), reader=ScriptedReader(), validity=ScriptedValidity()
    )
    wiring: Any = SimpleNamespace(dataset=dataset, agent=agent, renderer=tags())
    oracle = Wiring.oracle(wiring)
    assert isinstance(oracle, PolicyRunner)
    assert isinstance(oracle.engine, Script)
    assert (oracle.reader, oracle.validity) == (agent.reader, environment.validity)


def test_demonstrations_are_read_and_judged_by_rules_that_cost_nothing() -> None:
    node = yaml.safe_load((CONFIGS / "agent/memory_llm.yaml").read_text())
    wiring: Any = SimpleNamespace(
        config={"agent": node},
        equipment=SimpleNamespace(over=lambda corpora: {"tools": {}}),
        make_agent=lambda engine, renderer, equipment, given: given,
    )
    given: Any = Wiring._demonstrating_agent(wiring, ScriptedEngine([]), tags(), {})
    assert given == node | {"reader": {"name": "cloze"}, "validity": {"name": "none"}}
    assert node["reader"]["name"] == "completer"
    wiring.config["environment"] = {"name": "search"}
    assert Wiring._demonstrating_agent(wiring, ScriptedEngine([]), tags(), {}) == {"name": "search"}
