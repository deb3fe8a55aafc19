"""A user's typed Python function as a tool: `tools.weather.name=my_tools:weather`.

The function, async or not, runs in a process of its own (workers.py), so that it may hang, crash, leak or hold the
interpreter's lock without anybody else noticing: at its deadline the process is killed with all it has started.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.tools.base import Environment, ToolResult
from agentgrpo.tools.signature import spec_of, takes_workspace
from agentgrpo.tools.workers import WorkerCrashed, Workers


class FunctionTool:
    """An exception of the function -> runtime_error with its last line; a crash of its process too, and its being
    killed or short of memory where a second attempt, in a new process, ends alike. What it prints is dropped; what it
    returns is told to the policy (a text as it is, None as nothing, else str() of it, which must hold no address in
    memory: runtime_error)."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        processes: int = 4,
        recycle_after: int = 1000,
        max_result_chars: int = 100_000,
        memory_mb: int = 4096,
    ) -> None:
        """function: a global one of a module that can be imported. processes: calls at a time. recycle_after: calls of
        one process; 1 = each call has a fresh one, so that no call finds what others have left in it. max_result_chars:
        longer results are cut. memory_mb: of each process; past it the function meets a MemoryError. Raises
        ConfigError."""
        if not inspect.isfunction(function):
            raise ConfigError(f"tool {function!r}: a function or a class is needed")
        location = f"{function.__module__}:{function.__qualname__}"
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise ConfigError(f"tool {location}: its process cannot import it; define it at the top of a module")
        self.spec = spec_of(function)
        self.exclusive = takes_workspace(function)
        self.at_once = processes
        self._workers = Workers(
            location,
            processes=processes,
            recycle_after=recycle_after,
            max_chars=max_result_chars,
            memory_mb=memory_mb,
        )

    async def call(self, arguments: Mapping[str, Any], environment: Environment) -> ToolResult:
        seed = json.dumps([environment.key, self.spec.name, arguments], sort_keys=True)
        workspace = str(environment.workspace) if self.exclusive else None
        try:
            reply = await self._workers.call({"arguments": dict(arguments), "workspace": workspace, "seed": seed})
        except WorkerCrashed as e:
            return ToolResult.failed(str(e))
        if "error" in reply:
            return replace(ToolResult.failed(reply["error"]), detail=reply["detail"])
        return ToolResult.ok(reply["text"])

    async def close(self) -> None:
        await self._workers.close()
