"""What every tool keeps to. A tool joins by its name in the registry, and by one call of it here."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir
from agentgrpo.config.build import REGISTRY, admit_user_code, build_node
from agentgrpo.core.errors import EpisodeError
from agentgrpo.core.types import Outcome, Passage, ToolCall
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.schema import ArgumentSchema
from agentgrpo.tools.toolbox import Toolbox
from tests.tools.leftovers import new_processes
from tests.tools.places import Place

OWN = "tests.tools.samples:weather"
NODES: dict[str, dict[str, Any]] = {
    "python": {"sandbox": "unsafe_subprocess"},
    "mcp": {"command": [sys.executable, str(Path(__file__).with_name("mcp_server.py"))], "allow": ["add", "shout"]},
}
"""Keys of a tool's preset that a test sets."""
CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "calculator": {"calculator": {"expression": "29*34-7"}},
    "fetch": {"fetch": {"url": "http://127.0.0.1/"}},
    "files": {
        "read_file": {"path": "prices.txt"},
        "write_file": {"path": "a/b.txt", "content": "text"},
        "list_files": {"path": "."},
        "lookup": {"table": "prices", "key": "verdren"},
    },
    "mcp": {"add": {"a": 1, "b": 2}, "shout": {"text": "hey", "times": 2}},
    "python": {"python": {"code": "print(6 * 7)"}},
    "search": {"search": {"query": "where"}},
    OWN: {"weather": {"city": "Bern", "days": 2}},
}
"""Name in the registry -> name of a tool it brings -> arguments that fit."""
LISTED = [*(name for name in REGISTRY["tool"] if isinstance(REGISTRY["tool"], Mapping)), OWN]
SERVED_SLOWLY = [pytest.param(name, marks=pytest.mark.slow) if name == "mcp" else name for name in LISTED]
"""A server of its own per test takes a second; tests/tools/test_mcp.py and two of these begin some."""
HOSTILE = [
    "",
    " ",
    "\0",
    "\ud800",
    "\n" * 50,
    "../" * 20,
    "<|im_end|>",
    "x" * 100_000,
    "{}",
    "'\"; $(id)",
    "\u202e\u0661",
]
VALUES: list[Any] = [None, True, 1, 1.5, float("nan"), "text", [1], {"a": 1}]


class Shelf:
    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        return [Passage(id="a", text="Here.")]

    async def close(self) -> None: ...


def make(name: str) -> Any:
    admit_user_code([OWN])
    preset = configs_dir() / "tools" / f"{name}.yaml"
    keys = yaml.safe_load(preset.read_text(encoding="utf-8"))[name] if preset.exists() else {}
    node = {**keys, "name": name, **NODES.get(name, {})}
    return build_node("tool", node, retrievers={"vdb": Shelf()})


@asynccontextmanager
async def tools_of(name: str) -> AsyncIterator[dict[str, Tool]]:
    if name == "mcp" and importlib.util.find_spec("mcp") is None:
        pytest.skip("the package mcp is an extra")
    made = await asyncio.to_thread(make, name)
    try:
        yield {t.spec.name: t for t in (made.tools if hasattr(made, "tools") else [made])}
    finally:
        await made.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return fresh(tmp_path / "first")


def fresh(workspace: Path) -> Place:
    workspace.mkdir()
    (workspace / "prices.txt").write_text("verdren 44\n")
    return Place(workspace)


class Recorder:
    """A tool of the same schema that keeps the arguments it gets."""

    def __init__(self, tool: Tool) -> None:
        self.spec = tool.spec
        self.got: list[Mapping[str, Any]] = []

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        self.got.append(arguments)
        return ToolResult.ok("")

    async def close(self) -> None: ...


def test_every_tool_is_listed() -> None:
    assert set(LISTED) <= set(CALLS), "give the new tool a call in CALLS"


@pytest.mark.parametrize("name", SERVED_SLOWLY)
async def test_a_spec_says_what_is_needed(name: str) -> None:
    async with tools_of(name) as tools:
        assert set(tools) == set(CALLS[name])
        for tool in tools.values():
            assert isinstance(tool, Tool)
            assert tool.spec.description.strip()
            assert json.loads(json.dumps(tool.spec.parameters)) == tool.spec.parameters
            schema = ArgumentSchema(tool.spec.name, tool.spec.parameters)
            assert schema.problem(CALLS[name][tool.spec.name]) is None
            assert tool.spec.parameters["properties"].keys() >= CALLS[name][tool.spec.name].keys()


@pytest.mark.parametrize("name", LISTED)
async def test_arguments_of_wrong_types_never_reach_a_tool(name: str, place: Place) -> None:
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}
    async with tools_of(name) as tools:
        for tool in tools.values():
            recorder = Recorder(tool)
            box = Toolbox({tool.spec.name: recorder}, count_tokens=len)
            fitting, properties = CALLS[name][tool.spec.name], tool.spec.parameters["properties"]
            wrong = [{k: v for k, v in fitting.items() if k != r} for r in tool.spec.parameters.get("required", ())]
            for key, value in ((k, v) for k in properties for v in VALUES):
                kind = properties[key].get("type")
                fits = type(value) is bool if kind == "boolean" else kind is None or isinstance(value, kinds[kind])
                if not fits or (type(value) is bool and kind in ("integer", "number")) or value != value:
                    wrong.append({**fitting, key: value} if kind else {})
            for arguments in (a for a in wrong if a):
                _, record = await box.call(ToolCall(name=tool.spec.name, arguments=arguments), place, turn=0)
                assert (arguments, record.outcome) == (arguments, Outcome.INVALID_ARGS)
            await box.call(ToolCall(name=tool.spec.name, arguments=fitting), place, turn=0)
            assert (recorder.got, len(wrong) > 5) == ([fitting], True)


@pytest.mark.parametrize("name", SERVED_SLOWLY)
async def test_equal_calls_have_equal_results(name: str, place: Place, tmp_path: Path) -> None:
    results = []
    for workspace in (place, fresh(tmp_path / "second")):
        async with tools_of(name) as tools:
            results.append([await tools[t].call(CALLS[name][t], workspace) for t in CALLS[name] for _ in range(2)])
    assert results[0] == results[1]
    outcome = Outcome.INVALID_ARGS if name == "fetch" else Outcome.SUCCESS  # a private address
    assert {r.outcome for r in results[0]} == {outcome}


@pytest.mark.parametrize("name", SERVED_SLOWLY)
async def test_hostile_texts_have_typed_results(name: str, place: Place) -> None:
    async with tools_of(name) as tools:
        for tool in tools.values():
            for text in HOSTILE:
                keys = [k for k, s in tool.spec.parameters["properties"].items() if s.get("type") == "string"]
                arguments = {**CALLS[name][tool.spec.name], **dict.fromkeys(keys, text)}
                if ArgumentSchema("t", tool.spec.parameters).problem(arguments):
                    continue
                try:
                    result = await tool.call(arguments, place)
                except EpisodeError:
                    assert name == "mcp", "an infrastructure failure that a policy can bring about"
                    continue
                assert result.text.encode("utf-8").decode("utf-8") == result.text


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", LISTED)
async def test_a_cancelled_call_leaves_nothing(name: str, place: Place) -> None:
    async with tools_of(name):  # what a first use loads stays open
        before = descriptors()
    async with tools_of(name) as tools:
        for tool in tools.values():
            for wait_s in (None, 0.0, 0.001, 0.02):
                call = asyncio.create_task(tool.call(CALLS[name][tool.spec.name], place))
                if wait_s is not None:
                    await asyncio.sleep(wait_s)
                call.cancel()
                await asyncio.wait([call], timeout=2.0)
                assert call.done()
                assert call.cancelled() or isinstance(call.result(), ToolResult)
    for _ in range(100):  # a call that several were waiting for ends a moment after the last of them
        if not new_processes() and descriptors() <= before:
            break
        await asyncio.sleep(0.01)
    assert new_processes() == []
    assert descriptors() <= before
