"""What a tool is: named, described by a schema, called in one attempt's workspace, answering with a typed result."""

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
    """How a call ended. `text` is what the policy is told: untrusted, not yet cut to length."""

    outcome: Outcome
    text: str
    num_results: int = 0
    result_ids: tuple[str, ...] = ()
    cached: bool = False
    detail: str = ""
    """For people: never shown to the policy."""

    @classmethod
    def ok(cls, text: str) -> ToolResult:
        return cls(outcome=Outcome.SUCCESS, text=text)

    @classmethod
    def refused(cls, why: str) -> ToolResult:
        """The arguments are wrong: the policy's fault."""
        return cls(outcome=Outcome.INVALID_ARGS, text=f"error: {why}")

    @classmethod
    def failed(cls, why: str) -> ToolResult:
        """The tool could not do it with these arguments (no such file, an exception in the program)."""
        return cls(outcome=Outcome.RUNTIME_ERROR, text=f"error: {why}")


class Workspace(Protocol):
    """What one attempt at a task has to itself, shared with nobody: made before its first turn, gone when it is scored.
    An episode that is tried again gets another one."""

    task: Task
    seed: str
    """Seeds whatever a tool draws, alike for every attempt at the episode: "train/12|task-7|3"."""
    key: str
    """Names the attempt among all others: "train/12|task-7|3|0", and "train/12|task-7|3|1" for the second. What a tool
    keeps by it is never met again."""

    @property
    def path(self) -> Path:
        """The attempt's own directory, made when first asked for, the task's files in it."""
        ...

    @property
    def keeps_any(self) -> bool:
        """Whether anything was asked of `resource` yet."""
        ...

    async def resource(self, owner: object, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """What `owner`, a tool, keeps for this attempt alone (a connection, a table, a game): `open()` entered when it
        is first asked for, the same value ever after, left when the attempt is over, however it ends, and before the
        directory is removed. It is entered and left in a task of its own, so that a call that is cancelled does it no
        harm. Raises what opening it raises, and opens it anew when it is asked for again; ToolError when the attempt is
        over."""
        ...


@runtime_checkable
class Tool(Protocol):
    """A tool whose calls change what other calls of the episode see (it writes into the workspace) says so with an
    attribute `exclusive = True`: parallel calls of one turn then wait for each other, in the order of writing. One that
    serves only so many calls at a time says how many (`at_once = 4`): the others wait before their deadline begins.
    So does one that has a coroutine `prepare(workspace)`, for what a call may have to wait for that is not its own
    fault: the toolbox awaits it before every call."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        """`arguments` fit the schema. The policy's mistakes are a ToolResult; an infrastructure failure raises
        ToolError. The toolbox sets the deadline by cancelling: a cancelled call leaves nothing running behind."""
        ...

    async def close(self) -> None:
        """Once, at the end of the run, on any event loop."""
        ...


@runtime_checkable
class Toolset(Protocol):
    """A part of the configuration that brings several tools (an MCP server, the files of a workspace)."""

    tools: Sequence[Tool]

    async def close(self) -> None: ...


class ToolBefore:
    """A tool that stands before another one, `real`, and says of itself what that one says."""

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
