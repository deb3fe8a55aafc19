"""Stand-ins for costly tools: they compute the tool's result in this process if it is certain.

They serve only demonstrations, of which a warm start makes thousands; a policy always calls the real tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentgrpo.tools.base import Tool, ToolBefore, ToolResult, Workspace
from agentgrpo.worlds.workshop.world import value_of

_PRINTED = re.compile(r"print\((.*)\)")


def simulated(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """`tools` with a stand-in for python."""
    return {name: SimulatedPython(tool) if name == "python" else tool for name, tool in tools.items()}


class SimulatedPython(ToolBefore):
    """Prints the values of expressions that worlds.workshop.world knows; every other program runs in `real`."""

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        printed = _PRINTED.fullmatch(arguments["code"])
        try:
            return ToolResult.ok(str(value_of(printed[1] if printed else "")))
        except ValueError:
            return await self._real.call(arguments, workspace)

    async def close(self) -> None:
        """The real tool belongs to the run."""
