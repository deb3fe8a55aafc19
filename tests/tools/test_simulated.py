"""Demonstrations are made with a stand-in for python: what it answers is what python answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentgrpo.core.types import Exit, Passage
from agentgrpo.engines.base import Engine
from agentgrpo.environments.factory import Runner
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.run.warm_start import demonstrate
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.files import Files
from agentgrpo.tools.python import PythonTool
from agentgrpo.tools.workspace import Workspaces
from agentgrpo.worlds.simulated import SimulatedPython, simulated
from agentgrpo.worlds.workshop.dataset import Workshop
from tests.runners import tool_runner


class Counting:
    """Python, and how often it was called."""

    def __init__(self, python: Tool) -> None:
        self.spec, self._python, self.calls = python.spec, python, 0

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        self.calls += 1
        return await self._python.call(arguments, workspace)

    async def close(self) -> None:
        await self._python.close()


@pytest.mark.parametrize("shown", [24, pytest.param(105, marks=pytest.mark.slow)])
def test_the_stand_in_answers_as_the_sandbox_does(shown: int) -> None:
    """Demonstrations of two worlds twice: the same tokens, the same records."""
    python = Counting(PythonTool())
    workspaces = Workspaces()
    tools: dict[str, Tool] = {"calculator": Calculator(), "python": python}
    tools |= {tool.spec.name: tool for tool in Files(offered=("lookup", "read_file"), max_lines=3).tools}
    stand_ins = simulated(tools)

    def make_runner(engine: Engine, renderer: Renderer, corpora: Mapping[str, Sequence[Passage]]) -> Runner:
        assert isinstance(renderer, ReactRenderer)
        return tool_runner(engine=engine, renderer=renderer, tools=chosen, workspaces=workspaces)

    dataset = Workshop(train_tasks=1, dev_tasks=1, test_tasks=1)
    tokenizer = train_tokenizer((), vocab_size=400, control_strings=dataset.language.control_strings or (), words=())
    renderer = ReactRenderer(tokenizer=tokenizer)
    try:
        for world in dataset.demonstration_worlds(2, shown):
            chosen = stand_ins
            quick = demonstrate(world, renderer, make_runner)
            assert python.calls == 0
            chosen = tools
            real = demonstrate(world, renderer, make_runner)
            assert python.calls > shown * 2 // 7
            python.calls = 0
            assert [e.branches for e in quick] == [e.branches for e in real]
            assert [e.tool_records for e in quick] == [e.tool_records for e in real]
            assert {e.exit for e in real} == {Exit.ANSWERED}
    finally:
        asyncio.run(workspaces.close())
        asyncio.run(python.close())


class Shouting(Counting):
    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        return ToolResult.failed(arguments["code"].upper())


@pytest.mark.parametrize(
    "code", ["print(x)", "import os", "print(1/2)", "print(1); print(2)", "", "print(1)\nprint(2)"]
)
async def test_what_it_does_not_know_runs_in_the_real_one(code: str) -> None:
    real = Shouting(PythonTool(sandbox="unsafe_subprocess"))
    assert (await SimulatedPython(real).call({"code": code}, None)).text == f"error: {code.upper()}"  # type: ignore[arg-type]
    assert (await SimulatedPython(real).call({"code": "print(6*7)"}, None)).text == "42"  # type: ignore[arg-type]
    await real.close()


def test_the_stand_in_waits_where_python_does() -> None:
    python = PythonTool(workspace="read_write", max_concurrent=3)
    stand_in: Any = simulated({"python": python})["python"]
    assert (stand_in.exclusive, stand_in.at_once) == (True, 3)
    assert not hasattr(stand_in, "no such thing")
