"""Processes that run one function. They are kept for later calls; a cancelled call kills its process and all processes
that it has started.

The processes are new programs, not forks of this process, so that threads and GPU state of the trainer do not matter.
The trainer talks to them on a separate event loop (`on_idle_loop`), so they outlive the callers' event loops.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentgrpo.core.concurrency import Limiter, on_idle_loop
from agentgrpo.core.errors import ConfigError, ToolError

_SCRIPT = Path(__file__).with_name("worker.py")
_TERM_S, _KILL_S = 2.0, 1.0  # a keeper killed too early leaves its children behind
_POLL_S = 0.002


class WorkerCrashed(Exception):
    """The process ended during a call because of the function itself. The message says how."""


class _Fell(Exception):
    """The process was killed during a call or ran out of memory, because of this call or for another reason."""


class Workers:
    """At most `processes` worker processes at a time, started when needed; each is replaced after `recycle_after`
    calls. `location`: "module:attribute" of the function. memory_mb: memory that each process may write to. variables:
    the environment of each process; None = the environment of this process. Raises ConfigError."""

    def __init__(
        self,
        location: str,
        *,
        processes: int,
        recycle_after: int,
        max_chars: int,
        memory_mb: int,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if processes < 1 or recycle_after < 1 or max_chars < 1:
            limits = f"processes={processes}, recycle_after={recycle_after}, max_result_chars={max_chars}"
            raise ConfigError(f"tool {location}: {limits}; 1 or more are allowed")
        if memory_mb < 64:
            raise ConfigError(f"tool {location}: memory_mb={memory_mb}; 64 or more is allowed")
        self._location, self._recycle_after = location, recycle_after
        self._max_chars, self._memory_mb, self._variables = max_chars, memory_mb, variables
        self._limiter = Limiter(processes)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._endings: set[asyncio.Task[None]] = set()

    async def call(self, request: Mapping[str, Any], *, timeout_s: float | None = None) -> Mapping[str, str]:
        """Return the function's reply {"text"} or {"error", "detail"}. A cancelled call has ended its process when it
        returns, and so has a call that takes longer than `timeout_s`, not counting the wait for a process. Raises
        WorkerCrashed; TimeoutError; ToolError if no process can be started or the function cannot be imported.

        If a process falls (_Fell), this call may be innocent: somebody else killed the process, or earlier calls filled
        its memory. So the call is repeated once in a new process. If that falls too, the call is to blame: a policy
        that can make a process fall must not have the failure excused as infrastructure."""
        return await on_idle_loop(self._call(request, timeout_s))

    async def _call(self, request: Mapping[str, Any], timeout_s: float | None) -> Mapping[str, str]:
        async with self._limiter, asyncio.timeout(timeout_s):
            with suppress(_Fell):
                return await self._ask(self._take(), request)
            try:
                return await self._ask(self._new(), request)
            except _Fell as e:
                raise WorkerCrashed(str(e)) from e

    async def _ask(self, worker: _Worker, request: Mapping[str, Any]) -> Mapping[str, str]:
        try:
            reply = await worker.ask(request)
        except BaseException:
            await self._end(worker)
            raise
        is_short = "memory" in reply
        if is_short or worker.num_calls >= self._recycle_after:
            await self._end(worker)
        else:
            self._idle.append(worker)
        if is_short and worker.num_calls > 1:
            raise _Fell(reply["error"])
        return reply

    async def close(self) -> None:
        """End every process."""
        self.end_now()

    def end_now(self) -> None:
        """Like `close`, for callers that cannot await."""
        self._idle.clear()
        for worker in list(self._all):
            worker.end_now()
        self._all.clear()

    def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
            worker.end_now()
            self._all.discard(worker)
        return self._new()

    def _new(self) -> _Worker:
        worker = _Worker(self._location, self._max_chars, self._memory_mb, self._variables)
        self._all.add(worker)
        return worker

    async def _end(self, worker: _Worker) -> None:
        """End a worker in a separate task, which a second cancellation does not stop."""
        ending = asyncio.get_running_loop().create_task(worker.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        ending.add_done_callback(lambda _: self._all.discard(worker))
        await asyncio.shield(ending)


class _Worker:
    def __init__(self, location: str, max_chars: int, memory_mb: int, variables: Mapping[str, str] | None) -> None:
        self.num_calls = self._number = 0
        self._location = location
        limits = {"max_chars": max_chars, "memory": memory_mb * 2**20}
        self._hello: Mapping[str, Any] | None = {"location": location, "path": _import_path(), **limits}
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(_SCRIPT), str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    # Sets of texts have the same order in every process, so results do not depend on the process.
                    env={**(os.environ if variables is None else variables), "PYTHONHASHSEED": "0"},
                )
        except OSError as e:
            self._channel.close()
            raise ToolError(f"tool {location}: no process can be started: {e}") from e

    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, str]:
        if self._hello is not None:
            try:
                reply = await self._exchange(self._hello)
            except (_Fell, WorkerCrashed) as e:  # before any call
                raise ToolError(f"tool {self._location}: its process ended while it was imported: {e}") from e
            if "error" in reply:
                raise ToolError(f"tool {self._location} cannot be imported in its process: {reply['error']}")
            self._hello = None
        self.num_calls += 1
        return await self._exchange(request)

    async def _exchange(self, message: Mapping[str, Any]) -> Mapping[str, str]:
        loop = asyncio.get_running_loop()
        self._number += 1
        body = json.dumps({**message, "number": self._number}).encode("ascii")
        reply: Mapping[str, Any] = {"number": 0}
        try:
            await loop.sock_sendall(self._channel, len(body).to_bytes(4, "big") + body)
            while reply["number"] != self._number:
                size = int.from_bytes(await self._exactly(loop, 4), "big")
                reply = json.loads(await self._exactly(loop, size))
        except (ConnectionError, EOFError) as e:
            raise await self._obituary() from e
        return {key: value for key, value in reply.items() if key != "number"}

    async def _exactly(self, loop: asyncio.AbstractEventLoop, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            more = await loop.sock_recv(self._channel, size - len(got))
            if not more:
                raise EOFError
            got += more
        return bytes(got)

    async def _obituary(self) -> Exception:
        """Return the error that says why the process ended."""
        await self._exit(_KILL_S)
        code = self._process.poll()
        if code is None:
            return WorkerCrashed("the tool closed its process")
        if code < 0 or code == 128 + signal.SIGKILL:
            return _Fell("the process of the tool was killed; it may need more memory than there is")
        if code > 128:
            name = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else str(code - 128)
            return WorkerCrashed(f"the tool crashed ({name})")
        return WorkerCrashed(f"the tool ended its process (exit code {code})")

    async def _exit(self, within_s: float) -> None:
        for _ in range(round(within_s / _POLL_S)):
            if not self.is_alive():
                break
            await asyncio.sleep(_POLL_S)

    async def end(self) -> None:
        try:
            for stop, wait_s in ((self._process.terminate, _TERM_S), (self._process.kill, _KILL_S)):
                stop()
                await self._exit(wait_s)
        finally:
            self.end_now()

    def end_now(self) -> None:
        """End the process without an event loop; returns at once if `end` has done it."""
        for stop, wait_s in ((self._process.terminate, _TERM_S), (self._process.kill, _KILL_S)):
            if self.is_alive():
                stop()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait_s)
        self._channel.close()


def _import_path() -> list[str]:
    return [entry or str(Path.cwd()) for entry in sys.path]
