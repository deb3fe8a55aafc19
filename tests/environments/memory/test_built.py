"""The agent as a configuration names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.config.build import build_node, takes
from agentgrpo.core.errors import ConfigError
from agentgrpo.environments.base import Counting, Measured, Rehearsing, Replayable, bill_of
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.validity import AssertedValidity, NoValidity
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.examine import Closing
from tests.environments.memory.scripted import ScriptedReader, ScriptedValidity, tags
from tests.environments.scripted import ScriptedEngine
from tests.runners import memory_runner

NODE = yaml.safe_load((Path(__file__).parents[3] / "configs/agent/memory.yaml").read_text())


def built(**changes: Any) -> Any:
    # what the wiring injects into every agent, whether it asks for it or not
    rest = {"thesaurus": {}, "prices": {}, "retrievers": {}, "tools": {}, "environments": None}
    return build_node("agent", NODE | changes, engine=ScriptedEngine([]), renderer=tags(), describe_tools=False, **rest)


def test_reader_and_judge_are_nodes_of_their_own() -> None:
    agent = built()
    assert isinstance(agent, PolicyRunner)
    assert (type(agent.reader), type(agent.validity), agent.describe_tools) == (ClozeReader, NoValidity, False)
    other = built(schema="keyed", shown_by="matching", validity={"name": "asserted"})
    assert (type(other.validity), other.schema, other.shown_by) == (AssertedValidity, "keyed", "matching")
    assert all(isinstance(agent, protocol) for protocol in (Rehearsing, Counting, Measured, Closing))
    assert takes("agent", NODE, "schema")
    assert not takes("agent", NODE, "tools")


def test_the_same_agent_on_another_engine_has_the_same_parts_and_one_account_of_them() -> None:
    agent, engine = built(), ScriptedEngine([])
    again = agent.on(engine)
    assert isinstance(agent, Replayable)
    assert (again.engine, again.reader, again.validity) == (engine, environment.reader, environment.validity)
    assert bill_of(agent) == {}


def test_the_accounts_of_reader_and_judge_stand_side_by_side() -> None:
    agent = memory_runner(
        engine=ScriptedEngine([]),
        renderer=tags(),
        reader=ScriptedReader(asked=[((), ())] * 3),
        validity=ScriptedValidity(),
    )
    assert bill_of(agent) == {"reader/calls": 3.0}
    environment.validity.counts = lambda: {"cost": 0.5}  # type: ignore[attr-defined]
    assert bill_of(agent) == {"reader/calls": 3.0, "validity/cost": 0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "three"}, r"agent\.schema 'three': .* are allowed\. Did you mean 'three_part'\?"),
        ({"reader": {"name": "clozed"}}, r"agent\.reader\.name=clozed; registered are .*\. Did you mean 'cloze'\?"),
        ({"shown": 3}, r"unknown key agent\.shown; allowed are .*\. Did you mean 'shown_by'\?"),
        ({"describe_tools": False}, r"unknown key agent\.describe_tools; allowed are "),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**changes)
