"""A connection to one server that is kept up, on a thread with an event loop of its own.

A run has several event loops, one after the other; the server has one. A call is handed over to the server's loop and
waited for on the caller's, which may give up at any time.

    starting --> connected --(it ends, hangs, talks nonsense)--> pause --> connected ... at most max_restarts times in a
    row without an answered call; then every call fails at once."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import mcp_types
from mcp import Client, MCPError
from pydantic import ValidationError

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.core.types import Outcome
from agentgrpo.services.rate import pause_s
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.mcp.connections import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PROBE_S = 3.0
_KINDS = {mcp_types.CONNECTION_CLOSED: "transport", mcp_types.PARSE_ERROR: "garbage"}
_CLOSE_S = 15.0
_MAX_TOOLS = 1000


class McpSession:
    """`shown` names the server in messages. timeout_s: of a call. start_timeout_s: to connect and list the tools.

    A call that the server does not answer in time is the call's trouble (Outcome.TIMEOUT) where it still answers
    something else, and the server's (ToolError, and it is started anew) where it does not."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        shown: str,
        timeout_s: float,
        start_timeout_s: float,
        max_restarts: int,
    ) -> None:
        self._connect = connect
        self._shown = shown
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._max_restarts = max_restarts
        self._started: Future[list[mcp_types.Tool]] = Future()
        self._schemas: dict[str, Any] = {}
        self._changed: frozenset[str] = frozenset()
        self._failures = 0
        self._probes: dict[int, asyncio.Task[bool]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="mcp", daemon=True)

    def start(self) -> list[mcp_types.Tool]:
        """The server's tools. Raises ConfigError where there is no server to be had."""
        self._thread.start()
        try:
            return self._started.result(self._start_timeout_s + _CLOSE_S)
        except (TimeoutError, ToolError) as e:
            self.stop()
            raise ConfigError(f"{self._shown}: {e or 'no answer'}; start it by hand to see what is wrong") from e

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Raises ToolError where the server failed, not the tool."""
        call = self._call(name, arguments)
        try:
            handed_over = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as e:
            call.close()
            raise ToolError(f"{self._shown}: closed", kind="closed") from e
        try:
            return await asyncio.wrap_future(handed_over)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ToolError(f"{self._shown}: closed during the call", kind="closed") from None  # the loop has ended

    def stop(self) -> None:
        """Lets the server go, without waiting for it."""
        if self._thread.is_alive() and hasattr(self, "_loop") and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    async def close(self) -> None:
        """Returns when the server has gone."""
        self.stop()
        await asyncio.to_thread(self._thread.join, _CLOSE_S)
        if self._thread.is_alive():
            logger.warning("%s did not end within %g s", self._shown, _CLOSE_S)

    # --- on the server's thread

    async def _main(self) -> None:
        self._closing = asyncio.Event()
        self._broken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self._loop.create_future()
        while not self._closing.is_set():
            why = await self._connected()
            if not self._started.done():
                self._started.set_exception(ToolError(why))
                break
            if self._closing.is_set():
                break
            self._failures += 1
            if self._failures > self._max_restarts:
                why = f"{self._shown}: gone for good after {self._max_restarts} restarts in a row: {why}"
                logger.error("%s", why)
                self._ready.set_exception(ToolError(why, kind="transport"))
                await self._closing.wait()
                break
            logger.warning("%s: %s; restart %d of %d", self._shown, why, self._failures, self._max_restarts)
            await self._pause(pause_s(self._shown, self._failures - 1, backoff_s=0.2))
        if not self._ready.done():
            self._ready.set_exception(ToolError(f"{self._shown}: closed", kind="closed"))
        self._ready.exception()  # nobody may be waiting for it
        for task in self._background:
            task.cancel()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _connected(self) -> str:
        """One connection from its beginning to its end, and why it ended."""
        connection = self._connect()
        self._broken.clear()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_timeout_s):
                    client = await stack.enter_async_context(Client(connection, cache=None))
                    tools = await _tools_of(client)
                self._welcome(client, tools)
                try:
                    await _first(self._closing, self._broken, connection.ended)
                    if self._broken.is_set():
                        connection.abandon()
                finally:
                    self._leave()
        except TimeoutError:
            return connection.reason or f"it did not say which tools it has within {self._start_timeout_s:g} s"
        except Exception as e:
            leaf = _leaf(e)
            return str(leaf) if isinstance(leaf, ToolError) else connection.reason or f"{type(leaf).__name__}: {leaf}"
        return connection.reason or "it did not answer, or closed the connection"

    def _welcome(self, client: Client, tools: list[mcp_types.Tool]) -> None:
        if not self._started.done():
            self._schemas = {tool.name: tool.input_schema for tool in tools}
            self._started.set_result(tools)
        self._compare(tools)
        self._ready.set_result(client)

    def _compare(self, tools: list[mcp_types.Tool]) -> None:
        """What the policy was told of the tools must stay true: those that are gone or take other arguments are not
        called until they are back; new ones are nobody's."""
        listed = {tool.name: tool.input_schema for tool in tools}
        changed = frozenset(name for name, schema in self._schemas.items() if listed.get(name) != schema)
        if changed - self._changed:
            logger.warning("%s has changed its tools: %s", self._shown, ", ".join(sorted(changed)))
        self._changed = changed

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        client = await self._client()
        if name in self._changed:
            await self._check(client, name)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            await self._check(client, name, kind="timeout")
            return ToolResult(outcome=Outcome.TIMEOUT, text=f"error: not done within {self._timeout_s:g} s")
        except asyncio.CancelledError:
            self._in_background(self._answers(client))
            raise
        except MCPError as e:
            await self._check(client, name, kind=_KINDS.get(e.code, "server"))
            return ToolResult.refused(e.message) if e.code == mcp_types.INVALID_PARAMS else ToolResult.failed(e.message)
        except (ValidationError, RuntimeError) as e:
            raise ToolError(f"{self._shown}: {name} answered with nonsense: {str(e)[:200]}", kind="garbage") from e
        self._failures = 0
        if result.is_error:
            await self._check(client, name)
            return ToolResult.failed(_text_of(result))
        return ToolResult.ok(_text_of(result))

    async def _check(self, client: Client, name: str, *, kind: str = "server") -> None:
        """After a call that failed: raises ToolError where the server has, or is not the one it was."""
        if not await self._answers(client):
            raise ToolError(f"{self._shown}: it failed during a call of {name}", kind=kind)
        if name in self._changed:
            raise ToolError(f"{self._shown}: {name} is not the tool any more that it was", kind="changed")

    async def _client(self) -> Client:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                return await asyncio.shield(self._ready)
        except ToolError as e:
            raise ToolError(str(e), kind=e.kind) from None  # each caller its own
        except TimeoutError as e:
            raise ToolError(f"{self._shown}: not connected", kind="transport") from e

    async def _answers(self, client: Client) -> bool:
        """Whether the server still does what it did at the start; where it does not, it is started anew. Those who ask
        at the same time get one answer."""
        probe = self._probes.get(id(client))
        if probe is None:
            probe = self._probes[id(client)] = self._in_background(self._lists(client))
            probe.add_done_callback(lambda _: self._probes.pop(id(client), None))
        return await asyncio.shield(probe)

    async def _lists(self, client: Client) -> bool:
        try:
            async with asyncio.timeout(min(_PROBE_S, self._timeout_s)):
                self._compare(await _tools_of(client))
        except (TimeoutError, MCPError, ValidationError, RuntimeError, ToolError):
            if self._ready.done() and self._ready.exception() is None and self._ready.result() is client:
                self._leave()
            return False
        self._failures = 0
        return True

    def _leave(self) -> None:
        """Whoever calls from now on waits for the next connection."""
        self._broken.set()
        if self._ready.done():
            self._ready = self._loop.create_future()

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
    """The texts of a result, a line each; what is no text is named."""
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
    """The first real error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
