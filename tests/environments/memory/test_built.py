"""The environment as a configuration names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.config.build import build_node, takes
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolCall
from agentgrpo.environments.base import Turn
from agentgrpo.environments.factory import Attempt
from agentgrpo.environments.memory.environment import MemoryEnvironments
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.validity import AssertedValidity, NoValidity
from agentgrpo.run.examine import Closing
from tests.environments.memory.scripted import ONE, ScriptedReader, ScriptedValidity, tags
from tests.environments.scripted import ScriptedEngine
from tests.runners import memory_runner

NODE = yaml.safe_load((Path(__file__).parents[3] / "configs/environment/memory.yaml").read_text())
del NODE["defaults"]


def built(**changes: Any) -> MemoryEnvironments:
    # what a run injects into every environment, whether it asks for it or not
    rest = {"thesaurus": {}, "prices": {}, "retrievers": {}, "tools": {}, "workspaces": None}
    made = build_node("environment", NODE | changes, renderer=tags(), describe_tools=False, **rest)
    assert isinstance(made, MemoryEnvironments)
    return made


def test_reader_and_judge_are_nodes_of_their_own() -> None:
    made = built()
    assert (type(made.reader), type(made.validity), made.describe_tools) == (ClozeReader, NoValidity, False)
    other = built(schema="keyed", shown_by="matching", validity={"name": "asserted"})
    assert (type(other.validity), other.schema, other.shown_by) == (AssertedValidity, "keyed", "matching")
    assert isinstance(made, Closing)
    assert takes("environment", NODE, "schema")
    assert not takes("environment", NODE, "tools")


async def test_every_attempt_has_a_memory_of_its_own_and_the_same_parts() -> None:
    made = built(schema="keyed")
    attempt = Attempt(task=ONE, sample_index=0, stream="train/0", max_context=10_000)
    first = made.make(attempt)
    await first.reset(ONE)
    note = Turn(index=0, text="", token_ids=(), calls=(ToolCall(name="insert", arguments={"content": "Velmor lives"}),))
    await first.step(note)
    again = made.make(replace(attempt, number=1))
    assert (len(first.memory.passages()), len(again.memory.passages())) == (1, 0)
    assert first.options.reader is again.options.reader is made.reader


def test_the_accounts_of_reader_and_judge_stand_side_by_side() -> None:
    class Paid(ScriptedValidity):
        def counts(self) -> dict[str, float]:
            return {"cost": 0.5}

    def counted(validity: ScriptedValidity) -> dict[str, float]:
        reader = ScriptedReader(asked=[((), ())] * 3)
        made = memory_runner(engine=ScriptedEngine([]), renderer=tags(), reader=reader, validity=validity)
        return dict(made.environment.counts())

    assert built().counts() == {}
    assert counted(ScriptedValidity()) == {"reader/calls": 3.0}
    assert counted(Paid()) == {"reader/calls": 3.0, "validity/cost": 0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "three"}, r"environment\.schema 'three': .* are allowed\. Did you mean 'three_part'\?"),
        (
            {"reader": {"name": "clozed"}},
            r"environment\.reader\.name=clozed; registered are .*\. Did you mean 'cloze'\?",
        ),
        ({"shown": 3}, r"unknown key environment\.shown; allowed are .*\. Did you mean 'shown_by'\?"),
        ({"describe_tools": False}, r"unknown key environment\.describe_tools; allowed are "),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**changes)
