"""Connections to a server: a program started here and reached through pipes, or a URL."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Protocol

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agentgrpo.core.secrets import handed, masked
from agentgrpo.services.client import host_of, is_loopback
from agentgrpo.services.secret import Secret
from agentgrpo.tools.workspace import clear_away

logger = logging.getLogger(__name__)

_GUARD = Path(__file__).with_name("guard.py")
_EXIT_S = 2.0
"""Seconds for a program to end by itself after its input is closed; then it is killed."""
_HUNG_S = 0.3
"""Seconds for a program that has not answered: it may just have ended and still report how."""
_KILL_S = 5.0
_POLL_S = 0.01
SESSION = "{session}"
MAX_GARBAGE = 1000
"""Lines of a program's output that are not messages; beyond this number the program is not taken for a server."""
_STDERR_BYTES = 2048

Read = anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage | Exception]
Write = anyio.streams.memory.MemoryObjectSendStream[SessionMessage]
Streams = tuple[Read, Write]


class Connection(Protocol):
    """An MCP transport: `async with` yields its message streams; usable once."""

    ended: asyncio.Event
    """Set when the other side is gone."""

    @property
    def reason(self) -> str:
        """The reason for people why the other side is gone; "" if unknown."""
        ...

    @property
    def bytes_kept(self) -> int:
        """Bytes written to files so far, outside the session's folder; 0 if unknown."""
        ...

    def abandon(self) -> None:
        """Call this when the other side does not answer: leaving then does not wait for it."""

    async def __aenter__(self) -> Streams: ...

    async def __aexit__(self, *error: object) -> None: ...


class ServerProgram:
    """A server that is a program: one JSON message a line on its standard input and output.

    It runs under guard.py, so it ends with all its children when the connection is closed or this process dies. Its
    environment holds a short list of harmless variables and those named in `variables`, no others. new_folder: creates
    the folder that replaces {session} in the command; it is removed when the program is gone."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Sequence[str],
        *,
        max_message_bytes: int,
        new_folder: Callable[[], Path],
    ) -> None:
        self.ended = asyncio.Event()
        self._command = list(command)
        self._new_folder = new_folder
        self._folder: Path | None = None
        self._variables = list(variables)
        self._max_message_bytes = max_message_bytes
        self._end = ""
        self._closing = self._abandoned = False
        self._stderr = b""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def reason(self) -> str:
        said = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return self._hidden(f"{self._end}: {said[-1]}" if said else self._end)[-500:]

    @property
    def bytes_kept(self) -> int:
        """Bytes written by the program and its children (Linux). Unknown, hence 0, if the session has a folder: the
        bytes may lie inside it."""
        return 0 if self._folder is not None else _written(self._process.pid)

    def _hidden(self, text: str) -> str:
        return masked(text, *self._variables)

    def abandon(self) -> None:
        self._abandoned = True

    async def __aenter__(self) -> Streams:
        starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # a program exists by now, or soon will
            await starting
            self.abandon()
            await self.__aexit__()
            raise

    async def _start(self) -> Streams:
        environment = handed(self._variables)
        command = self._command
        if any(SESSION in word for word in command):
            self._folder = self._new_folder()
            command = [word.replace(SESSION, str(self._folder)) for word in command]
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        with ExitStack() as undo, theirs:
            undo.callback(self._control.close)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD), str(theirs.fileno())),
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                limit=self._max_message_bytes,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            undo.pop_all()
        received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = (received, read, write, to_send)
        self._tasks = [
            asyncio.create_task(self._receive(received)),
            asyncio.create_task(self._send(to_send)),
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._watch()),
        ]
        return read, write

    async def __aexit__(self, *error: object) -> None:
        self._closing = True
        for stream in self._streams:
            stream.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._gone(_HUNG_S if self._abandoned else _EXIT_S)
        self._control.shutdown(socket.SHUT_WR)  # now the guard ends all remaining processes
        if not await self._gone(_KILL_S):
            with suppress(ProcessLookupError):
                self._process.kill()
            logger.warning("%s: process %d did not end in time", self._command[0], self._process.pid)
            await self._gone(_KILL_S)
        await asyncio.wait(self._tasks, timeout=0.2)  # time for last output
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._control.close()
        transport = getattr(self._process, "_transport", None)  # stays open while a surviving process holds a pipe
        if transport is not None:
            transport.close()
        if self._folder is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, clear_away, self._folder))

    async def _gone(self, seconds: float) -> bool:
        # Not process.wait(): it also waits for pipes, which other processes may hold open.
        for _ in range(round(seconds / _POLL_S)):
            if self._process.returncode is not None:
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _receive(self, received: anyio.streams.memory.MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Read line by line until the output ends or proves not to be a server's; then keep draining so that the
        program never blocks on us.
        """
        lines, garbage = self._process.stdout, 0
        assert lines is not None
        try:
            while line := await lines.readline():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    garbage += 1
                    if garbage == 1:
                        said = self._hidden(line.decode("utf-8", "replace"))[:80]
                        logger.warning("%s printed what is no message: %r", self._command[0], said)
                    if garbage > MAX_GARBAGE:
                        self._end = f"more than {MAX_GARBAGE} lines that are no messages"
                        break
                    continue
                await received.send(SessionMessage(message))
        except ValueError:  # the line is longer than the reader's limit
            self._end = f"a message of more than {self._max_message_bytes} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            logger.debug("%s: closed on this side", self._command[0])
        if self._end:
            self.ended.set()
        received.close()
        while await lines.read(65536):
            pass

    async def _send(self, to_send: anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in to_send:
                pipe.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await pipe.drain()

    async def _listen(self) -> None:
        """Keep the end of the program's stderr; it explains how the program ended."""
        pipe = self._process.stderr
        assert pipe is not None
        while said := await pipe.read(65536):
            self._stderr = (self._stderr + said)[-_STDERR_BYTES:]

    async def _watch(self) -> None:
        """Wait until the guard reports how the program ended, or the guard itself has ended."""
        with suppress(OSError):
            said = await asyncio.get_running_loop().sock_recv(self._control, 100)
            if not self._closing or said not in (b"", b"exit code 0"):
                self._end = self._end or f"it ended with {said.decode() or 'its guard'}"
            self.ended.set()


def _written(pid: int) -> int:
    """Bytes that a process and its descendants have written to files; pipes and sockets do not count."""
    total = 0
    with suppress(OSError, ValueError):
        told = Path(f"/proc/{pid}/io").read_text(encoding="ascii").split()
        total += int(told[told.index("write_bytes:") + 1])
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(_written(int(child)) for child in children.read_text(encoding="ascii").split())
    return total


class Endpoint:
    """A server behind a URL (streamable HTTP). secret: the API key that it needs. Bodies are uncompressed and at most
    max_message_bytes long each. Proxies of the environment are used, except for this machine itself."""

    def __init__(self, url: str, secret: Secret | None, *, max_message_bytes: int) -> None:
        self.ended = asyncio.Event()
        self.reason = ""
        self._url = url
        self._secret = secret
        self._max_message_bytes = max_message_bytes
        self._stack = AsyncExitStack()

    @property
    def bytes_kept(self) -> int:
        return 0

    def abandon(self) -> None:
        """Does nothing: an endpoint has no process to wait for."""

    async def __aenter__(self) -> Streams:
        async with AsyncExitStack() as stack:
            client = httpx2.AsyncClient(
                headers={"Accept-Encoding": "identity", **(self._secret.headers() if self._secret else {})},
                timeout=httpx2.Timeout(30.0, read=None),  # calls have deadlines of their own
                trust_env=not is_loopback(host_of(self._url)),
                event_hooks={"response": [self._guarded]},
            )
            await stack.enter_async_context(client)
            streams = await stack.enter_async_context(
                streamable_http_client(self._url, http_client=client, max_sse_event_size=self._max_message_bytes)
            )
            self._stack = stack.pop_all()
            return streams  # type: ignore[return-value]  # streams of the same methods

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def _guarded(self, response: httpx2.Response) -> None:
        kind = response.headers.get("Content-Type", "").lower()
        if (response.status_code >= 500 or response.status_code == 429) and not kind.startswith("application/json"):
            raise httpx2.ReadError(f"HTTP {response.status_code}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx2.ReadError("a compressed body, not asked for")
        if not kind.startswith("text/event-stream"):  # event streams have their own limit
            response.stream = _Limited(response.stream, self._max_message_bytes)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: object, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        num_bytes = 0
        async for chunk in self._stream:  # type: ignore[attr-defined]
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise httpx2.ReadError(f"a body of more than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]
