"""The interface of a tool: it has a name and a schema, runs in an attempt's workspace and returns a typed result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """How a call ended. `text` is shown to the policy; it is untrusted and not yet cut to length."""

    outcome: Outcome
    text: str
    num_results: int = 0
    result_ids: tuple[str, ...] = ()
    cached: bool = False
    detail: str = ""
    """For people only; never shown to the policy."""

    @classmethod
    def ok(cls, text: str) -> ToolResult:
        return cls(outcome=Outcome.SUCCESS, text=text)

    @classmethod
    def refused(cls, why: str) -> ToolResult:
        """The policy's fault: the arguments are wrong."""
        return cls(outcome=Outcome.INVALID_ARGS, text=f"error: {why}")

    @classmethod
    def failed(cls, why: str) -> ToolResult:
        """The tool could not do it with these arguments (no such file, an exception in the program)."""
        return cls(outcome=Outcome.RUNTIME_ERROR, text=f"error: {why}")


class Workspace(Protocol):
    """The private state of one attempt at a task: created before the first turn, removed after scoring. A retried
    episode gets a new workspace."""

    task: Task
    seed: str
    """Seed for everything a tool draws; equal for every attempt at the episode, for example "train/12|task-7|3"."""
    key: str
    """Unique name of the attempt: "train/12|task-7|3|0", and "train/12|task-7|3|1" for the second attempt. State that a
    tool keeps under this key is never seen again by another attempt."""

    @property
    def path(self) -> Path:
        """The attempt's own directory, created with the task's files on first use."""
        ...

    @property
    def keeps_any(self) -> bool:
        """Whether any tool has called `resource` yet."""
        ...

    async def resource(self, owner: object, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the resource (a connection, a table, a game) that the tool `owner` keeps for this attempt alone. The
        first call enters `open()`; later calls return the same value. However the attempt ends, the context manager is
        then left, before the directory is removed. It is entered and left in a separate asyncio task, so a cancelled
        call cannot harm it. Raises any error that opening raises (the next call opens anew), and ToolError when the
        attempt is over."""
        ...


@runtime_checkable
class Tool(Protocol):
    """A tool whose calls change state that other calls of the episode see (for example, it writes into the workspace)
    sets the attribute `exclusive = True`: parallel calls of one turn then run one after the other, in the order in
    which the policy wrote them. A tool that serves a limited number of calls at a time sets `at_once` to it (`at_once =
    4`); further calls wait, and their deadline begins after the wait. For waits that are not a call's fault a tool may
    define a coroutine `prepare(workspace)`; the toolbox awaits it before every call."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        """`arguments` fit the schema. A policy's mistake is returned as a ToolResult; an infrastructure failure raises
        ToolError. The toolbox cancels the call at the deadline; a cancelled call must leave nothing running."""
        ...

    async def close(self) -> None:
        """Called once, at the end of the run, on any event loop."""
        ...


@runtime_checkable
class Toolset(Protocol):
    """A configuration entry that provides several tools (an MCP server, the files of a workspace)."""

    tools: Sequence[Tool]

    async def close(self) -> None: ...


class ToolBefore:
    """A wrapper around the tool `real` that has the same spec, `exclusive` and `at_once`."""

    def __init__(self, real: Tool) -> None:
        self.spec = real.spec
        self.exclusive = bool(getattr(real, "exclusive", False))
        self.at_once: int | None = getattr(real, "at_once", None)
        self._real = real

    async def prepare(self, workspace: Workspace) -> None:
        prepare = getattr(self._real, "prepare", None)
        if prepare is not None:
            await prepare(workspace)

    async def close(self) -> None:
        await self._real.close()
