"""The sandbox of tools that run programs, and of an agent's command: its self-test, a test program, and the resource
limits of programs."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentgrpo.config.build import build_node, takes
from agentgrpo.core.errors import AgentGrpoError
from agentgrpo.core.types import Outcome, Task
from agentgrpo.environments.program.program import CommandProgram
from agentgrpo.environments.program.sandbox import CommandSandbox, limits_of_command
from agentgrpo.environments.program.view import files_named_in
from agentgrpo.preflight.doctor.case import Case, told
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.tools.python import PythonTool
from agentgrpo.tools.sandbox.bounds import NOTHING, Bound
from agentgrpo.tools.workspace import Workspaces

_WHY = "programs that the policy writes would run where they can see and change what is yours, or not at all"
_WHY_BOUNDS = (
    "where the machine runs out of it, programs are ended first, but what else runs there may be slowed or ended"
)


async def look_at_sandbox(case: Case, found: CheckNotes) -> None:
    """Check the sandbox of every tool that has one, and of the command; no other part of the run is needed."""
    environment = case.config["environment"]
    nodes = case.config["tools"] if takes("environment", environment, "tools") else {}
    boxed: Mapping[str, Any] = {k: n for k, n in nodes.items() if takes("tool", n, "sandbox", name=k)}
    has_command = environment["name"] == "program" and environment.get("command") is not None
    if not boxed and not has_command:
        raise Skipped("no tool runs programs")
    for name, node in boxed.items():
        await _look_at_tool(name, node, found)
    if has_command:
        _look_at_command(case, environment, found)


async def _look_at_tool(name: str, node: Mapping[str, Any], found: CheckNotes) -> None:
    key = f"tools.{name}.sandbox"
    if node.get("sandbox") == "unsafe_subprocess":
        found.note(f"{key}=unsafe_subprocess: programs may do what you may do", why=_WHY, key=key)
    began = time.perf_counter()
    try:
        tool = build_node("tool", {"name": name, **node})  # the sandbox tests itself when built
    except AgentGrpoError as error:
        found.problem(told(error), why=_WHY, key=key)
        return
    found.facts[name] = {"sandbox": node.get("sandbox")}
    if isinstance(tool, PythonTool):
        await _run(tool, key, found)
        at_once = f"{tool.at_once} programs at a time; no control group does, as {tool.no_groups}"
        _tell_bounds(tool.bounds, f"tools.{name}", f"tools.{name}.processes", at_once, found)
    await tool.close()
    found.facts[name]["seconds"] = round(time.perf_counter() - began, 3)


def _look_at_command(case: Case, node: Mapping[str, Any], found: CheckNotes) -> None:
    key = "environment.sandbox"
    found.facts["environment"] = {"sandbox": node["sandbox"]}
    if not node["sandbox"]:
        found.note(
            f"{key}=false: whatever the command starts may do what you may do, and report for the command",
            why="a policy with a shell may read the answers, and pay itself",
            key=key,
        )
        return
    limits = limits_of_command(node["timeout_s"], node["memory_mb"], node["processes"])
    run_files = files_named_in(case.config, but=("command", "show"))
    with tempfile.TemporaryDirectory() as place:
        try:
            argv = CommandProgram(node["command"], env=node["env"]).argv
            sandbox = CommandSandbox(_unserved, argv, Path(place), limits, show=node["show"], run_files=run_files)
        except AgentGrpoError as error:
            found.problem(told(error), why=_WHY, key=key)
            return
        sandbox.close()
    why_not = f"no control group does, as {sandbox.no_groups}"
    _tell_bounds(sandbox.bounds, "environment", "environment.processes", why_not, found)


@asynccontextmanager
async def _unserved(opened: socket.socket) -> AsyncIterator[None]:
    with opened:
        yield


def _tell_bounds(bounds: Iterable[Bound], name: str, key: str, more: str, found: CheckNotes) -> None:
    bounds = list(bounds)
    found.facts[name.removeprefix("tools.")]["bounds"] = [f"{b.what}: {b.most}, by {b.by}" for b in bounds]
    for bound in bounds:
        if bound.by == NOTHING:
            found.note(f"nothing bounds the {bound.what} of {name}: {bound.most}; {more}", why=_WHY_BOUNDS, key=key)


async def _run(tool: PythonTool, key: str, found: CheckNotes) -> None:
    workspaces = Workspaces()
    task = Task(id="doctor", messages=(), references=())
    try:
        async with workspaces.open(task, seed="doctor") as workspace:
            result = await tool.call({"code": "print(6 * 7)"}, workspace)
    finally:
        await workspaces.close()
    if (result.outcome, result.text) != (Outcome.SUCCESS, "42"):
        found.problem(f"print(6 * 7) comes to {result.outcome}: {result.text[:200]!r}", why=_WHY, key=key)
