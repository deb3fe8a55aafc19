"""A server on a thread with its own event loop, and the assignment of its sessions.

A run uses several event loops, one after the other; a server has one. A call is passed to the server's loop and awaited
on the caller's loop; the caller may give up at any time."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import mcp_types

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.services.rate import pause_s
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.mcp.connections import Connection
from agentgrpo.tools.mcp.session import McpSession

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CLOSE_S = 15.0
_BACKOFF_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often to wait for a server. timeout_s: limit of a call. start_timeout_s: limit to connect and
    list the tools. max_restarts: restarts in a row; after them every call fails at once."""

    timeout_s: float
    start_timeout_s: float
    max_restarts: int


class McpServer(ABC):
    """shown: the server's name in messages. mode: see McpSession."""

    def __init__(
        self, connect: Callable[[], Connection], *, shown: str, patience: Patience, mode: str = "auto"
    ) -> None:
        self._connect, self._shown, self._mode, self._patience = connect, shown, mode, patience
        self._started: Future[list[mcp_types.Tool]] = Future()
        self._told: dict[str, Any] | None = None
        self._failures = 0
        """Failures in a row."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="mcp", daemon=True)

    def start(self) -> list[mcp_types.Tool]:
        """Start the server and return its tools. Raises ConfigError if no server can be reached."""
        self._thread.start()
        try:
            return self._started.result(self._patience.start_timeout_s + _CLOSE_S)
        except (TimeoutError, ToolError) as e:
            self.stop()
            raise ConfigError(f"{self._shown}: {e or 'no answer'}; start it by hand to find the problem") from e

    def stop(self) -> None:
        """Tell the server to end, without waiting for it."""
        if self._thread.is_alive() and hasattr(self, "_loop") and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    async def close(self) -> None:
        """End the server and wait until it has gone."""
        self.stop()
        await asyncio.to_thread(self._thread.join, _CLOSE_S)
        if self._thread.is_alive():
            logger.warning("%s did not end within %g s", self._shown, _CLOSE_S)

    def _over(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Schedule `work` on the server's loop. Raises ToolError."""
        try:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except RuntimeError as e:
            work.close()
            raise ToolError(f"{self._shown}: closed", kind="closed") from e

    async def _there(self, work: Coroutine[Any, Any, T], *, to_its_end: bool = False) -> T:
        """Return the result of `work`, run on the server's loop. to_its_end: `work` goes on even if the caller is
        cancelled. Raises ToolError, also if the server is closed meanwhile."""
        there = self._over(work)
        try:
            return await (asyncio.shield(there) if to_its_end else there)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ToolError(f"{self._shown}: closed during the call", kind="closed") from None  # the loop has ended

    # --- on the server's thread

    async def _main(self) -> None:
        self._closing = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        session = self._new_session()
        try:
            tools = await session.tools()
        except ToolError as e:
            self._started.set_exception(e)
            return
        self._told = {tool.name: tool.input_schema for tool in tools}
        serving = asyncio.create_task(self._serve(session))
        self._started.set_result(tools)
        await self._closing.wait()
        serving.cancel()
        await asyncio.wait({serving})
        await self._end()

    @abstractmethod
    async def _serve(self, first: McpSession) -> None:
        """Background work beside the calls; cancelled at the end."""

    @abstractmethod
    async def _end(self) -> None:
        """Close every session."""

    def _new_session(self) -> McpSession:
        return McpSession(
            self._connect(),
            shown=self._shown,
            timeout_s=self._patience.timeout_s,
            start_timeout_s=self._patience.start_timeout_s,
            told=self._told,
            mode=self._mode,
        )

    async def _failed(self, why: str) -> None:
        """Wait before the next attempt. Raises ToolError if no attempt is left."""
        self._failures += 1
        most = self._patience.max_restarts
        if self._failures > most:
            why = f"{self._shown}: gone for good after {most} restarts in a row: {why}"
            logger.error("%s", why)
            raise ToolError(why, kind="transport")
        logger.warning("%s: %s; restart %d of %d", self._shown, why, self._failures, most)
        await asyncio.sleep(pause_s(self._shown, self._failures - 1, backoff_s=_BACKOFF_S))


class SharedServer(McpServer):
    """One session shared by all callers and restarted when it fails:

    starting --> connected --(it ends, hangs, talks nonsense)--> pause --> connected ... at most max_restarts times in a
    row without an answered call"""

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Raises ToolError if the server failed, not the tool."""
        return await self._there(self._call(name, arguments))

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        try:
            async with asyncio.timeout(self._patience.start_timeout_s):
                session = await self._current()
        except TimeoutError as e:
            raise ToolError(f"{self._shown}: not connected", kind="transport") from e
        return await session.call(name, arguments)

    async def _current(self) -> McpSession:
        while True:
            try:
                session = await asyncio.shield(self._ready)
            except ToolError as e:
                raise ToolError(str(e), kind=e.kind) from None  # a separate exception for each caller
            if not session.is_over:
                return session
            await session.ended()
            await asyncio.sleep(0)  # the next one is under way

    async def _serve(self, first: McpSession) -> None:
        self._session = first
        self._ready: asyncio.Future[McpSession] = self._loop.create_future()
        self._ready.set_result(first)
        while True:
            await self._session.ended()
            self._ready = self._loop.create_future()
            if self._session.has_answered:
                self._failures = 0
            try:
                await self._failed(self._session.why)
            except ToolError as e:
                self._ready.set_exception(e)
                self._ready.exception()  # nobody may be awaiting it
                return
            self._session = self._new_session()
            try:
                await self._session.tools()
            except ToolError:
                continue  # it has ended
            self._ready.set_result(self._session)

    async def _end(self) -> None:
        await self._session.close()
        if not self._ready.done():
            self._ready.set_exception(ToolError(f"{self._shown}: closed", kind="closed"))
            self._ready.exception()


class Lease:
    """One attempt's session, from its request on."""

    def __init__(self, server: PooledServer, *, can_wait: bool) -> None:
        self.can_wait = can_wait
        self.is_extra = False
        """Whether it is granted beyond max_sessions."""
        self.given: asyncio.Future[McpSession] | None = None
        self._server = server

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Raises ToolError if the server failed, not the tool. After such a failure every further call raises, because
        the attempt's state on the server is lost."""
        return await self._server.call(self, name, arguments)


class PooledServer(McpServer):
    """A separate session for every attempt; a session is never reused:

    starting --> idle --(an attempt asks)--> lent --(it is over)--> closed

    Sessions are started ahead, up to the highest number requested at once so far, so that new attempts need not wait.
    max_sessions: limit on all sessions together; further requests wait. An attempt that cannot wait may exceed it: it
    holds another resource that attempts with a session may be waiting for."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        shown: str,
        patience: Patience,
        mode: str = "auto",
        max_sessions: int,
    ) -> None:
        super().__init__(connect, shown=shown, patience=patience, mode=mode)
        self._max_sessions = max_sessions
        self._starts_at_once = os.cpu_count() or 1
        self._sessions: set[McpSession] = set()
        """Sessions that have not ended."""
        self._starting: set[asyncio.Task[None]] = set()
        self._idle: deque[McpSession] = deque()
        self._waiting: deque[Lease] = deque()
        self._lent: set[Lease] = set()
        self._most_in_need = 0
        """The highest number of attempts that had a session or waited for one at once."""
        self._num_extra = 0
        self._gone: ToolError | None = None
        """Why no more sessions will be started."""

    @asynccontextmanager
    async def leased(self, *, can_wait: bool) -> AsyncIterator[Lease]:
        """Raises ToolError if no session can be had."""
        lease = Lease(self, can_wait=can_wait)
        try:
            await self._there(self._take(lease))
            yield lease
        finally:
            with suppress(ToolError):  # the server and all its sessions are closed
                await self._there(self._give_back(lease), to_its_end=True)

    async def call(self, lease: Lease, name: str, arguments: dict[str, Any]) -> ToolResult:
        """See Lease."""
        return await self._there(self._call(lease, name, arguments))

    # --- on the server's thread

    async def _call(self, lease: Lease, name: str, arguments: dict[str, Any]) -> ToolResult:
        assert lease.given is not None
        if lease.given.result().is_lost_unused:
            await self._give_back(lease)
            await self._take(lease)
        return await lease.given.result().call(name, arguments)

    async def _serve(self, first: McpSession) -> None:
        self._know(first)
        self._idle.append(first)

    async def _end(self) -> None:
        self._give_up(ToolError(f"{self._shown}: closed", kind="closed"))
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*(session.close() for session in list(self._sessions)))

    async def _take(self, lease: Lease) -> None:
        if self._gone is not None:
            raise ToolError(str(self._gone), kind=self._gone.kind)
        lease.given = self._loop.create_future()
        if lease.can_wait:
            self._waiting.append(lease)
        else:
            self._waiting.appendleft(lease)
            lease.is_extra = not self._idle and self._room() <= 0
            self._num_extra += lease.is_extra
        self._hand_over()
        await asyncio.shield(lease.given)

    async def _give_back(self, lease: Lease) -> None:
        if lease in self._waiting:
            self._waiting.remove(lease)
        if lease in self._lent:
            self._lent.remove(lease)
            assert lease.given is not None
            await lease.given.result().close()
        self._num_extra -= lease.is_extra
        lease.is_extra = False
        self._hand_over()

    def _room(self) -> int:
        return self._max_sessions + self._num_extra - len(self._sessions)

    def _hand_over(self) -> None:
        """Give idle sessions to waiting attempts, and start missing sessions."""
        while self._waiting and self._idle:
            session = self._idle.popleft()
            if session.is_over:
                continue
            lease = self._waiting.popleft()
            assert lease.given is not None
            lease.given.set_result(session)
            self._lent.add(lease)
        in_need = len(self._lent) + len(self._waiting)
        self._most_in_need = max(self._most_in_need, in_need)
        missing = len(self._waiting) + max(1, self._most_in_need - in_need) - len(self._idle)
        at_once = 1 if self._failures else self._starts_at_once
        while self._gone is None and len(self._starting) < min(missing, at_once) and self._room() > 0:
            session = self._new_session()
            self._know(session)
            task = asyncio.create_task(self._start(session))
            self._starting.add(task)
            task.add_done_callback(self._started_or_not)

    async def _start(self, session: McpSession) -> None:
        before = self._failures
        try:
            await session.tools()
        except ToolError as e:
            await session.ended()
            if self._failures != before:  # another session, started concurrently, has failed too
                return
            try:
                await self._failed(str(e))
            except ToolError as gone:
                self._give_up(gone)
        else:
            self._failures = 0
            self._idle.append(session)

    def _started_or_not(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        self._hand_over()

    def _know(self, session: McpSession) -> None:
        self._sessions.add(session)
        session.when_ended(lambda: self._forget(session))

    def _forget(self, session: McpSession) -> None:
        """A server may end an idle session; it is started again only on demand."""
        self._sessions.discard(session)
        if session in self._idle:
            self._idle.remove(session)
        if self._waiting:
            self._hand_over()

    def _give_up(self, why: ToolError) -> None:
        self._gone = why
        while self._waiting:
            given = self._waiting.popleft().given
            assert given is not None
            given.set_exception(ToolError(str(why), kind=why.kind))
