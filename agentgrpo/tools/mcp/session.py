"""One session with one server, from start to end: every user of the session shares the state that the server keeps for
it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import mcp_types
from mcp import Client, MCPError
from mcp.client.client import ConnectMode
from pydantic import ValidationError

from agentgrpo.core.errors import ToolError, line_of
from agentgrpo.core.types import Outcome
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.mcp.connections import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PROBE_S = 3.0
_LAST_WORDS_S = 1.0
"""Seconds for a session to report why it is over."""
_KINDS = {mcp_types.CONNECTION_CLOSED: "transport", mcp_types.PARSE_ERROR: "garbage"}
_MAX_TOOLS = 1000

_KEEPS = (
    "%s has written a file during a call of %s, and has no folder of its session: other episodes may find what this "
    "one leaves. Put {session}, a folder that each session has to itself, where it keeps its files, as in "
    "tools.mcp.command='env MEMORY_FILE_PATH={session}/memory.jsonl npx -y @modelcontextprotocol/server-memory'"
)
_told_keepers: set[str] = set()
"""Servers for which this warning has been logged."""


class McpSession:
    """A session runs entirely on one event loop. shown: the server's name in messages. timeout_s: limit of a call.
    start_timeout_s: limit to connect and list the tools. told: schemas of the tools that the policy was shown; None =
    use the schemas that this session lists. mode: how the protocol version is agreed on.

    If a call times out and the server still answers another request, the call gets Outcome.TIMEOUT; if the server
    answers nothing, the call raises ToolError and the session is over."""

    def __init__(
        self,
        connection: Connection,
        *,
        shown: str,
        timeout_s: float,
        start_timeout_s: float,
        told: Mapping[str, Any] | None,
        mode: ConnectMode,
    ) -> None:
        self.why = ""
        """Why the session is over; "" while it is not."""
        self.has_answered = False
        self._was_called = False
        self._connection, self._shown, self._mode = connection, shown, mode
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._told = told
        self._changed: frozenset[str] = frozenset()
        self._closing, self._broken = asyncio.Event(), asyncio.Event()
        self._probe: asyncio.Task[bool] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._tools: asyncio.Future[list[mcp_types.Tool]] = asyncio.get_running_loop().create_future()
        self._run = asyncio.create_task(self._from_beginning_to_end(), name="MCP session")

    @property
    def is_over(self) -> bool:
        """No further calls are made; the session may not have ended yet."""
        return self._broken.is_set() or self._closing.is_set() or self._run.done()

    @property
    def is_lost_unused(self) -> bool:
        """The session is over before its first call, so no state is lost with it."""
        return self.is_over and not self._was_called

    async def tools(self) -> list[mcp_types.Tool]:
        """Return the tools once the session is connected. Raises ToolError if it could not connect."""
        return await asyncio.shield(self._tools)

    def when_ended(self, callback: Callable[[], object]) -> None:
        self._run.add_done_callback(lambda _: callback())

    async def ended(self) -> None:
        await asyncio.wait({self._run})

    async def close(self) -> None:
        """End the session; returns when the other side is gone."""
        self._closing.set()
        if not self._tools.done():
            self._run.cancel()
        await self.ended()

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Raises ToolError if the server failed, not the tool."""
        if self.is_over:
            await asyncio.wait({self._run}, timeout=_LAST_WORDS_S)
            why = self.why or "it failed"
            raise ToolError(f"{self._shown}: the session is over, and its state lost: {why}", kind="transport")
        self._was_called = True
        client = self._client
        if name in self._changed:
            await self._check(name)
        kept = self._connection.bytes_kept
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            await self._check(name, kind="timeout")
            return ToolResult(outcome=Outcome.TIMEOUT, text=f"error: not done within {self._timeout_s:g} s")
        except asyncio.CancelledError:
            self._in_background(self._answers())
            raise
        except MCPError as e:
            await self._check(name, kind=_KINDS.get(e.code, "server"))
            return ToolResult.refused(e.message) if e.code == mcp_types.INVALID_PARAMS else ToolResult.failed(e.message)
        except (ValidationError, RuntimeError) as e:
            raise ToolError(f"{self._shown}: {name} answered with nonsense: {str(e)[:200]}", kind="garbage") from e
        self.has_answered = True
        if self._shown not in _told_keepers and self._connection.bytes_kept > kept:
            _told_keepers.add(self._shown)
            logger.warning(_KEEPS, self._shown, name)
        if result.is_error:
            await self._check(name)
            return ToolResult.failed(_text_of(result))
        return ToolResult.ok(_text_of(result))

    async def _from_beginning_to_end(self) -> None:
        try:
            self.why = await self._connected()
        finally:
            self.why = self.why or "closed"
            self._broken.set()
            if self._closing.is_set():
                for task in self._background:
                    task.cancel()
            if not self._tools.done():
                self._tools.set_exception(ToolError(self.why, kind="transport"))
                self._tools.exception()  # nobody may be awaiting it

    async def _connected(self) -> str:
        """Run the session; return the reason why it ended."""
        connection = self._connection
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_timeout_s):
                    self._client = await stack.enter_async_context(Client(connection, cache=None, mode=self._mode))
                    tools = await _tools_of(self._client)
                if self._told is None:
                    self._told = {tool.name: tool.input_schema for tool in tools}
                self._compare(tools)
                self._tools.set_result(tools)
                await _first(self._closing, self._broken, connection.ended)
                if self._broken.is_set():
                    connection.abandon()
                self._broken.set()
        except TimeoutError:
            return connection.reason or f"it did not say which tools it has within {self._start_timeout_s:g} s"
        except Exception as e:
            leaf = _leaf(e)
            return str(leaf) if isinstance(leaf, ToolError) else connection.reason or line_of(leaf)
        return connection.reason or "it did not answer, or closed the connection"

    def _compare(self, tools: list[mcp_types.Tool]) -> None:
        """The schemas shown to the policy must stay true: a tool that disappears or changes its arguments is not called
        until it is back; new tools are ignored."""
        listed = {tool.name: tool.input_schema for tool in tools}
        changed = frozenset(name for name, schema in (self._told or {}).items() if listed.get(name) != schema)
        if changed - self._changed:
            logger.warning("%s has changed its tools: %s", self._shown, ", ".join(sorted(changed)))
        self._changed = changed

    async def _check(self, name: str, *, kind: str = "server") -> None:
        """After a failed call: raises ToolError if the server itself has failed or the tool has changed."""
        if not await self._answers():
            raise ToolError(f"{self._shown}: it failed during a call of {name}", kind=kind)
        if name in self._changed:
            raise ToolError(f"{self._shown}: the tool {name} has changed or is gone", kind="changed")

    async def _answers(self) -> bool:
        """Whether the server still lists its tools; if not, the session is over. Concurrent callers share one probe."""
        if self._probe is None or self._probe.done():
            self._probe = self._in_background(self._lists())
        return await asyncio.shield(self._probe)

    async def _lists(self) -> bool:
        try:
            async with asyncio.timeout(min(_PROBE_S, self._timeout_s)):
                self._compare(await _tools_of(self._client))
        except (TimeoutError, MCPError, ValidationError, RuntimeError, ToolError):
            self._broken.set()
            return False
        self.has_answered = True
        return True

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _tools_of(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if len(tools) > _MAX_TOOLS or not page.tools:
            raise ToolError(f"it lists more than {_MAX_TOOLS} tools, or never ends listing them")


def _text_of(result: mcp_types.CallToolResult) -> str:
    """The texts of a result, one a line; a placeholder with its type replaces other content."""
    parts = []
    for part in result.content:
        match part:
            case mcp_types.TextContent():
                parts.append(part.text)
            case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
                parts.append(resource.text)
            case mcp_types.ResourceLink():
                parts.append(f"[{part.uri}]")
            case mcp_types.ImageContent() | mcp_types.AudioContent():
                parts.append(f"[{part.mime_type}]")
            case _:
                parts.append("[binary data]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _leaf(error: BaseException) -> BaseException:
    """Return the first leaf error in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
