"""From the configuration to what the environment works with: built where it is asked for, once, under its own names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentgrpo.config import build
from agentgrpo.config.build import PartNode, admit_user_code
from agentgrpo.config.overrides import normalise
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Outcome, Passage, ToolCall
from agentgrpo.run.build import build_equipment
from agentgrpo.run.equipment import Equipment, by_name
from agentgrpo.run.settings import Settings
from agentgrpo.services.meter import Meter
from agentgrpo.tasks.suite import MemberTasks
from agentgrpo.tools.functions import FunctionTool
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.workshop.dataset import Workshop
from tests import builders
from tests.environments.tools.scripted import Adder, Saying, echo, spec

ADDER, DOUBLE = "tests.test_equipment:MyAdder", "tests.tools.doubling:double"
CORPORA = {"vdb": [Passage(id="v1", text="Velmor was founded by Castin.")]}


class MyAdder(Adder):
    """A user's class with a setting of its own."""

    def __init__(self, *, called: str = "sum") -> None:
        super().__init__(spec=spec(called, a="integer", b="integer"))


@pytest.fixture(autouse=True)
def admitted() -> Iterator[None]:
    admit_user_code([ADDER, DOUBLE])
    yield
    build._admitted.difference_update([ADDER, DOUBLE])


def config(environment: str = "tools", **tools: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task": {"name": "workshop"},
        "environment": {"name": environment},
        "retriever": {"name": "embedded"},
        "tools": tools,
    }


def tools_of(equipment: Equipment) -> dict[str, Any]:
    return dict(equipment.for_environment["tools"])


def test_search_gets_retrievers_and_no_tools() -> None:
    equipment = Equipment(config("search"), CORPORA)
    assert list(equipment.for_environment["retrievers"]) == ["vdb"]
    assert (equipment.for_environment["tools"], equipment.workspaces) == ({}, None)
    assert equipment.closing == tuple(equipment.retrievers.values())


def test_corpora_are_told_where_nothing_else_can_be_found() -> None:
    corpora = {**CORPORA, "pages": [Passage(id="p", url="p", text="A page.")]}
    assert Equipment(config("search"), corpora).for_environment["corpora"] == CORPORA
    elsewhere = {"name": "http", "url": "http://127.0.0.1:1/retrieve"}
    for retriever in (elsewhere, {"name": "embedded", "web": {"name": "searxng", "base_url": "http://127.0.0.1:1"}}):
        equipment = Equipment({**config("search"), "retriever": retriever}, corpora)
        assert equipment.for_environment["corpora"] == {}
        assert equipment.over(corpora)["corpora"] == CORPORA  # what is demonstrated is searched here


TRAINING = (frozenset({"t1"}), {"vdb": [Passage(id="v2", text="Velmor was founded long ago.")]})


async def test_training_is_searched_for_in_documents_of_its_own() -> None:
    equipment = Equipment(config("search"), CORPORA, training=TRAINING)
    own = equipment.for_environment["training_retrievers"]
    assert own.task_ids == {"t1"}
    for retrievers, id in ((own.retrievers, "v2"), (equipment.retrievers, "v1")):
        assert [p.id for p in await retrievers["vdb"].search("who founded Velmor", top_k=5)] == [id]
    assert {*own.retrievers.values(), *equipment.retrievers.values()} <= {*equipment.closing}
    assert "training_retrievers" not in equipment.over(CORPORA), "a demonstration has one corpus"


def test_a_server_has_one_index_for_all() -> None:
    served = {**config("search"), "retriever": {"name": "http", "url": "http://127.0.0.1:1/retrieve"}}
    assert Equipment(served, CORPORA, training=TRAINING).for_environment["training_retrievers"] is None


def test_what_training_is_withheld_is_the_same_in_a_suite() -> None:
    almanac = Almanac(num_companies=20, dev_companies=4, test_companies=4)
    member, other = MemberTasks("facts", almanac), MemberTasks("toys", Workshop())
    assert (member.training_corpora(), other.training_corpora()) == (almanac.training_corpora(), None)


def test_a_run_withholds_it() -> None:
    """From the configuration to the environment of the run."""
    almanac = Almanac(num_companies=20, dev_companies=4, test_companies=4)
    settings = cast(
        Settings, SimpleNamespace(tree=config("search"), counterfactual=PartNode("counterfactual", {"name": "none"}))
    )
    own = build_equipment(settings, almanac, cast(Meter, None)).for_environment["training_retrievers"]
    assert own.task_ids == {task.id for task in almanac.split("train")}


def test_tools_get_tools_and_only_the_retrievers_that_they_ask_for() -> None:
    """So a task without corpora is fine."""
    equipment = Equipment(config(calculator={}, files={"name": "files", "offered": ["read_file", "lookup"]}), {})
    assert list(tools_of(equipment)) == ["calculator", "read_file", "lookup"]
    assert equipment.retrievers == {}
    searching = Equipment(config(search={}), CORPORA)
    assert (list(tools_of(searching)), list(searching.retrievers)) == (["search"], ["vdb"])


def test_a_tool_that_searches_needs_a_corpus() -> None:
    with pytest.raises(ConfigError, match=r"tools\.search searches, and task=workshop has no corpus; give it one"):
        Equipment(config(calculator={}, search={}), {})


def test_tools_for_an_environment_that_calls_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="environment=search calls no tools; use environment=tools, or tools=none"):
        Equipment(config("search", calculator={}), CORPORA)


def test_demonstrations_share_what_searches_nothing() -> None:
    equipment = Equipment(config(calculator={}, search={}), CORPORA)
    other = equipment.over({"vdb": [Passage(id="x1", text="Another world.")]})
    assert other["tools"]["calculator"] is tools_of(equipment)["calculator"]
    assert other["tools"]["search"] is not tools_of(equipment)["search"]
    assert other["workspaces"] is equipment.workspaces
    assert other["retrievers"]["vdb"] is not equipment.retrievers["vdb"]


def test_an_environment_of_tools_without_any_is_noted() -> None:
    told = "the environment has several turns and no tools: every call will fail; tools=calculator gives one"
    assert Equipment(config(), {}).notes == (told,)
    assert [Equipment(c, CORPORA).notes for c in (config(calculator={}), config("search"))] == [(), ()]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tools\.mine and tools\.adder are both called sum; leave one out"):
        Equipment(config(adder={"name": ADDER}, mine={"name": ADDER}), {})
    named = Equipment(config(adder={"name": ADDER}, mine={"name": ADDER, "called": "total"}), {})
    assert list(tools_of(named)) == ["sum", "total"]


def test_what_is_told_of_the_tools_has_a_fingerprint() -> None:
    """A run does not go on with tools that are not the ones it began with."""
    mine = {"name": ADDER, "called": "total"}
    one, same, renamed, fewer = (
        Equipment(config(**tools), {}).fingerprints
        for tools in (
            {"calculator": {}, "mine": mine},
            {"calculator": {}, "mine": mine},
            {"calculator": {}, "mine": {**mine, "called": "sum"}},
            {"calculator": {}},
        )
    )
    assert one == same
    assert len({one["tools"], renamed["tools"], fewer["tools"]}) == 3
    assert Equipment(config("search"), CORPORA).fingerprints == {}


async def test_a_plain_function_of_the_users_is_a_tool() -> None:
    equipment = Equipment(config(double={"name": DOUBLE, "processes": 1}), {})
    [tool] = tools_of(equipment).values()
    assert isinstance(tool, FunctionTool)
    assert (tool.spec.name, tool.spec.description) == ("double", "Twice the number.")
    box = Toolbox(tools_of(equipment), count_tokens=len)
    assert equipment.workspaces is not None
    environment = equipment.workspaces.open(builders.task(), seed="a")
    reply, record = await box.call(ToolCall(name="double", arguments={"number": 21}), environment, turn=0)
    assert (reply.text, record.outcome) == ("42", Outcome.SUCCESS)
    for part in equipment.closing:
        await part.close()


def test_only_code_that_the_user_names_is_run() -> None:
    build._admitted.discard(DOUBLE)
    with pytest.raises(ConfigError, match="is code from outside; to run it, name it on this command line"):
        Equipment(config(double={"name": DOUBLE}), {})


class Nowhere:
    """A workspace without a directory of its own."""

    task = builders.task()
    seed = key = "nowhere"
    path = Path()


def test_toolsets_bring_their_tools() -> None:
    class Both:
        tools = (Saying(echo), Saying(echo, name="shout"))

        async def close(self) -> None: ...

    both, adder = Both(), Adder()
    assert by_name({"both": both, "adder": adder}) == {"say": both.tools[0], "shout": both.tools[1], "add": adder}


class Mute:
    """What a newcomer may take for a tool."""

    async def call(self, arguments: Mapping[str, Any], workspace: Any) -> str:
        return "sunny"


def test_what_is_no_tool_is_told_what_a_tool_needs() -> None:
    half = Adder()
    half.spec = {"name": "add"}  # type: ignore[assignment]
    for part, name in ((Mute(), "Mute"), (half, "Adder")):
        with pytest.raises(ConfigError) as caught:
            by_name({"weather": part})  # type: ignore[dict-item]
        assert str(caught.value) == (
            f"tools.weather: {name} is no tool; a class needs spec (an agentgrpo.core.messages.ToolSpec), async "
            "call(arguments, workspace) and async close() (see agentgrpo.tools.base.Tool); a plain function with "
            "annotations is a tool as it is"
        )


# --- presets


PRESETS = {"tools": ["calculator", "files", "none"], "judge": ["exact_match", "token_f1"]}


def test_several_presets_at_once() -> None:
    assert normalise(["tools=[calculator,files]"], PRESETS, sweep=False) == ["tools=[calculator,files]"]
    with pytest.raises(
        ConfigError,
        match=r"tools=fils; presets are calculator, files, none, or code of your own: .*\. Did you mean 'files'",
    ):
        normalise(["tools=[calculator,fils]"], PRESETS, sweep=False)
    own = ["tools.double.name=my_tools:double", "run.eval.prices.double=0.1"]
    others = ["+tools.a.name=b:C", "~tools.files", "task.name=jsonl"]
    assert normalise([*own, *others], PRESETS, sweep=False) == [*(f"++{line}" for line in own), *others]
    with pytest.raises(ConfigError, match="presets are exact_match, token_f1"):
        normalise(["judge=[exact_match,token_f1]"], PRESETS, sweep=False)
