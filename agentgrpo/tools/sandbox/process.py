"""One process from start to end: fed, watched, stopped in time and always waited for.

Everything runs on the current event loop: no thread is started, and nothing blocks.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ToolError
from agentgrpo.tools.sandbox.base import MIB, End, Finished, SandboxLimits, SandboxProgram

# --- Read a process's output as it arrives, up to a limit.

_CHUNK = 64 * 1024


class Stream:
    """Reads a non-blocking descriptor on the event loop; calls `on_change` after every read."""

    def __init__(self, fd: int, max_bytes: int, on_change: Callable[[], None]) -> None:
        self.content = bytearray()
        self.is_over = False
        """More than max_bytes arrived; the rest stays unread."""
        self._fd, self._max_bytes, self._on_change = fd, max_bytes, on_change
        self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        if self._take() is not None:
            self.close()
        self._on_change()

    def _take(self) -> bool | None:
        """Read one chunk. None = more may follow; True = end of the stream; False = too much output, nothing more is
        read.
        """
        try:
            chunk = os.read(self._fd, min(_CHUNK, self._max_bytes + 1 - len(self.content)))
        except BlockingIOError:
            return None
        except OSError:
            return True  # the other end is gone with unread bytes of ours
        self.content += chunk
        if len(self.content) > self._max_bytes:
            del self.content[self._max_bytes :]
            self.is_over = True
            return False
        return None if chunk else True

    def drain(self) -> None:
        """Read the bytes that are still there after the process has ended."""
        if self._loop is not None:
            self.close()
            before = -1
            while len(self.content) > before:
                before = len(self.content)
                if self._take() is not None:
                    break

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None


INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
START_S = 30.0
"""Seconds within which even a busy machine has started an interpreter."""
_PATIENCE_S = 0.1
"""Seconds between two attempts to stop a process."""
_PATIENT_ATTEMPTS = 20
"""Attempts during which bwrap is left alive to notice that its child is gone."""
_LOG = logging.getLogger(__name__)
Argv = Callable[[int, int, int], Sequence[str]]
"""(control, source, extra) -> the command line. The process inherits these three descriptors: a socket, a file with the
order for inside.py, and a pipe with a few extra bytes."""


def order(program: SandboxProgram, limits: SandboxLimits, home: str) -> bytes:
    """Encode the order for inside.py, in an old version of the format that any Python reads."""
    files = {name: bytes(content) for name, content in program.files.items()}
    told = {"program": program.code, "files": files, "is_reported": program.is_reported}
    return marshal.dumps({**told, "limits": limits.rlimits, "home": home}, 2)


class Process:
    """Use once: `await Process(...).run()`."""

    def __init__(
        self,
        argv: Argv,
        *,
        order: bytes,
        limits: SandboxLimits,
        extra: bytes = b"",
        is_wrapped: bool = False,
        admit: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """is_wrapped: the program's first process is a child of the started process, which waits for it. admit: called
        with that child's pid before the program begins; an OSError keeps the program from beginning."""
        self._argv, self._order, self._extra, self._limits = argv, order, extra, limits
        self._is_wrapped, self._admit = is_wrapped, admit
        self._problem = ""
        self._changed = asyncio.Event()
        self._code: int | None = None
        self._cpu_s = 0.0
        self._is_ready = False

    async def run(self) -> Finished:
        """Raises ToolError if the program was never started."""
        with ExitStack() as held:
            try:
                self._start(held)
            except OSError as e:
                raise ToolError(f"sandbox: no process can be started: {e.strerror}") from e
            end = End.EXITED
            try:
                end = await self._watch()
            finally:
                await _to_its_end(self._stop())
            for stream in self._streams:
                stream.drain()
            if not self._is_ready:
                said = self._problem or self._errors.content.decode("utf-8", "replace").strip().rpartition("\n")[2]
                raise ToolError(f"sandbox: the interpreter did not start: {said or f'exit code {self._code}'}")
            return self._finished(end)

    def _start(self, held: ExitStack) -> None:
        """Start the process; the caller closes the resources in `held`, whatever happens."""
        with ExitStack() as given:  # the process keeps copies of these
            self._socket, control = socket.socketpair()
            held.enter_context(self._socket)
            given.enter_context(control)
            source = os.memfd_create("order")
            given.callback(os.close, source)
            with open(source, "wb", closefd=False) as file:
                file.write(self._order)
            os.lseek(source, 0, os.SEEK_SET)
            extra, extra_end = os.pipe()
            given.callback(os.close, extra)
            os.write(extra_end, self._extra)
            os.close(extra_end)
            ends = []
            for _ in range(2):
                ours, theirs = os.pipe()
                held.callback(os.close, ours)
                given.callback(os.close, theirs)
                os.set_blocking(ours, False)
                ends.append((ours, theirs))
            self._socket.setblocking(False)
            descriptors = control.fileno(), source, extra
            self._popen = subprocess.Popen(
                self._argv(*descriptors),
                stdin=subprocess.DEVNULL,
                stdout=ends[0][1],
                stderr=ends[1][1],
                pass_fds=descriptors,
                start_new_session=True,
                cwd="/",
                env={"PYTHONHASHSEED": "0"},  # otherwise sets would print in another order every time
            )
        loop, limit = asyncio.get_running_loop(), self._limits.max_output_bytes
        self._pidfd = os.pidfd_open(self._popen.pid)
        held.callback(os.close, self._pidfd)
        loop.add_reader(self._pidfd, self._reap)
        held.callback(loop.remove_reader, self._pidfd)
        self._output, self._errors = (Stream(ours, limit, self._changed.set) for ours, _ in ends)
        self._control = Stream(self._socket.fileno(), 4 * self._limits.disk_mb * MIB, self._on_control)
        self._streams = (self._output, self._errors, self._control)
        for stream in self._streams:
            held.callback(stream.close)

    def _on_control(self) -> None:
        if not self._is_ready and not self._problem and self._control.content:
            try:
                for pid in _children(self._popen.pid) if self._is_wrapped else []:
                    self._admit(pid)
            except OSError as e:
                self._problem = f"it cannot be bounded: {e}"
            else:
                self._is_ready = True
                with suppress(OSError):  # it is gone already
                    self._socket.send(b"G")
        self._changed.set()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._kill_group()  # before waiting for it: until then the group's number cannot be reused
        _, status, usage = os.wait4(self._popen.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._popen.returncode = code  # prevents a second wait
        self._code = code if code >= 0 else 128 - code
        self._cpu_s = usage.ru_utime + usage.ru_stime
        self._changed.set()

    async def _watch(self) -> End:
        """Wait until the process ends or must be stopped."""
        loop = asyncio.get_running_loop()
        was_ready = False
        deadline = loop.time() + START_S
        while self._code is None and not self._problem:
            if any(stream.is_over for stream in self._streams):
                return End.FLOODED  # _finished tells which stream
            if self._is_ready and not was_ready:
                was_ready, deadline = True, loop.time() + self._limits.timeout_s
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError:
                return End.TIMEOUT
        return End.EXITED

    async def _stop(self) -> None:
        """Kill the remaining processes, and wait for them."""
        attempts = 0
        while self._code is None:
            # Kill the first process inside: the kernel then kills the other processes inside, and bwrap, the parent,
            # exits by itself. If bwrap were killed first, we could not know when the inner processes are gone, and the
            # first would remain a zombie until some process adopts it.
            inside = _children(self._popen.pid) if self._is_wrapped else []
            for pid in inside:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not inside or attempts > _PATIENT_ATTEMPTS:
                self._kill_group()
            attempts += 1
            if attempts % 50 == 0:
                _LOG.error("process %d does not end, killed %d times", self._popen.pid, attempts)
            self._changed.clear()
            if self._code is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _PATIENCE_S)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _finished(self, end: End) -> Finished:
        assert self._code is not None
        if self._output.is_over or self._errors.is_over:
            end = End.FLOODED
        elif self._control.is_over:
            end = End.OVERFULL
        elif self._cpu_s >= self._limits.rlimits[0]:
            end = End.TIMEOUT
        return Finished(
            end=end,
            exit_code=self._code,
            output=bytes(self._output.content),
            errors=bytes(self._errors.content),
            files=files_of(bytes(self._control.content[1:])) if end is End.EXITED else None,
        )


def files_of(report: bytes) -> dict[str, bytes] | None:
    """The files in the report of inside.py; None if the report is incomplete. The program itself may have forged it."""
    files: dict[str, bytes] = {}
    at = 0
    while not report.startswith(b"end\n", at):
        line_end = report.find(b"\n", at, at + 64)
        numbers = report[at:line_end].split(b" ") if line_end >= 0 else []
        if len(numbers) != 2 or not all(n.isdigit() and len(n) < 12 for n in numbers):
            return None
        name_end = line_end + 1 + int(numbers[0])
        end = name_end + int(numbers[1])
        if end > len(report):
            return None
        files[report[line_end + 1 : name_end].decode("utf-8", "surrogateescape")] = report[name_end:end]
        at = end
    return files


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Complete `work`, even if the caller is cancelled repeatedly."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as e:
            cancelled = e
    task.result()
    if cancelled is not None:
        raise cancelled
