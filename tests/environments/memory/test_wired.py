"""What is built of the environment: one reader for the policy and the oracle, none that costs for demonstrations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from agentgrpo.run.wiring import Wiring

from agentgrpo.config.build import build_node
from agentgrpo.engines.scripted import ScriptedEngine as Script
from agentgrpo.rollout.loop import PolicyRunner
from tests.environments.memory.scripted import ScriptedReader, ScriptedValidity, tags
from tests.environments.scripted import ScriptedEngine
from tests.runners import memory_runner

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_oracle_is_in_the_same_environment_and_loads_no_reader_of_its_own() -> None:
    dataset = build_node("task", yaml.safe_load((CONFIGS / "task/diary.yaml").read_text()))
    runner = memory_runner(
        engine=ScriptedEngine([]), renderer=tags(), reader=ScriptedReader(), validity=ScriptedValidity()
    )
    wiring: Any = SimpleNamespace(dataset=dataset, runner=runner, renderer=tags())
    oracle = Wiring.oracle(wiring)
    assert isinstance(oracle, PolicyRunner)
    assert isinstance(oracle.engine, Script)
    assert oracle.environment is runner.environment


def test_demonstrations_are_read_and_judged_by_rules_that_cost_nothing() -> None:
    node = yaml.safe_load((CONFIGS / "environment/memory_llm.yaml").read_text())
    made: list[Any] = []
    wiring: Any = SimpleNamespace(
        config={"environment": node},
        equipment=SimpleNamespace(over=lambda corpora: {"tools": {}}),
        make_environment=lambda renderer, equipment, given: made.append(given),
    )
    Wiring._demonstrating(wiring, ScriptedEngine([]), tags(), {})
    assert made == [node | {"reader": {"name": "cloze"}, "validity": {"name": "none"}}]
    assert node["reader"]["name"] == "completer"
    wiring.config["environment"] = {"name": "search"}
    Wiring._demonstrating(wiring, ScriptedEngine([]), tags(), {})
    assert made[1] == {"name": "search"}
