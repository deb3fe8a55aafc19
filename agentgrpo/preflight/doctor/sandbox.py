"""The sandbox of tools that run programs: tested as it tests itself, and by a program; what bounds programs here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agentgrpo.config.build import build_node, takes
from agentgrpo.core.errors import AgentGrpoError
from agentgrpo.core.types import Outcome, Task
from agentgrpo.preflight.doctor.case import Case, told
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.tools.python import PythonTool
from agentgrpo.tools.sandbox.bounds import NOTHING
from agentgrpo.tools.workspace import Workspaces

_WHY = "programs that the policy writes would run where they can see and change what is yours, or not at all"
_WHY_BOUNDS = (
    "where the machine runs out of it, programs are ended first, but what else runs there may be slowed or ended"
)


async def look_at_sandbox(case: Case, found: CheckNotes) -> None:
    """Of every tool that has one; it needs nothing else of the run."""
    nodes = case.config["tools"] if takes("environment", case.config["environment"], "tools") else {}
    boxed: Mapping[str, Any] = {k: n for k, n in nodes.items() if takes("tool", n, "sandbox", name=k)}
    if not boxed:
        raise Skipped("no tool runs programs")
    for name, node in boxed.items():
        key = f"tools.{name}.sandbox"
        if node.get("sandbox") == "unsafe_subprocess":
            found.note(f"{key}=unsafe_subprocess: programs may do what you may do", why=_WHY, key=key)
        began = time.perf_counter()
        try:
            tool = build_node("tool", {"name": name, **node})  # the sandbox tests itself when it is made
        except AgentGrpoError as error:
            found.problem(told(error), why=_WHY, key=key)
            continue
        found.facts[name] = {"sandbox": node.get("sandbox")}
        if isinstance(tool, PythonTool):
            await _run(tool, key, found)
            _tell_bounds(tool, name, found)
        await tool.close()
        found.facts[name]["seconds"] = round(time.perf_counter() - began, 3)


def _tell_bounds(tool: PythonTool, name: str, found: CheckNotes) -> None:
    found.facts[name]["bounds"] = [f"{bound.what}: {bound.most}, by {bound.by}" for bound in tool.bounds]
    for bound in tool.bounds:
        if bound.by == NOTHING:
            found.note(
                f"nothing bounds the {bound.what} of tools.{name}: {bound.most}; {tool.at_once} programs at a time; "
                f"no control group does, as {tool.no_groups}",
                why=_WHY_BOUNDS,
                key=f"tools.{name}.processes",
            )


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
