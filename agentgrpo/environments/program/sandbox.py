"""A command in the sandbox: it can write only in its workspace, read only system files, code and paths that the user
shows, see only its own processes, and reach no server but the endpoint.

    keeper --> isolation.py --> door: opens a socket at the endpoint's address, sends it out, becomes the command

The command has its own network namespace, in which the endpoint's address is free. The endpoint serves the socket
opened there from outside, so its URL stays the same. The command's program is a copy that can be executed but not read:
the kernel then keeps its children from reading its memory.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.environments.program.view import binary_of, view_of
from agentgrpo.services import worker
from agentgrpo.tools.sandbox.base import MIB, SandboxLimits
from agentgrpo.tools.sandbox.bounds import bounds_of_command
from agentgrpo.tools.sandbox.isolation import NEEDS, NOBODY, Home, Isolation
from agentgrpo.tools.sandbox.seccomp import filter_for
from agentgrpo.tools.sandbox.self_test import fault_in, self_test

Serve: TypeAlias = Callable[[socket.socket], AbstractAsyncContextManager[None]]
"""Within this context the endpoint serves the given socket too."""
START_S = 60.0
MAX_TAIL = 64 * 1024
"""Bytes kept of a command's last output."""
CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""
_INSTEAD = "or leave environment.sandbox out"
_MISSING = (
    "environment.sandbox=true runs the command in bubblewrap, and there is no {name} here; install it (apt-get install "
    "{package}), "
)

_DOOR = """
import json, os, resource, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as opened:
    socket.send_fds(channel, [b"D"], [opened.fileno()])
if channel.recv(1) != b"G":
    os._exit(1)
for which, most in json.loads(sys.argv[3]):
    resource.setrlimit(which, (most, most))
os.closerange(3, 1024)
os.execvp(sys.argv[4], sys.argv[4:])
"""


def limits_of_command(timeout_s: float, memory_mb: int, processes: int) -> SandboxLimits:
    return SandboxLimits(
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        disk_mb=256,
        max_files=65_536,
        processes=processes,
        open_files=1024,
        max_output_bytes=MAX_TAIL,
    )


class CommandSandbox:
    """The sandbox of one command. Construction runs a program in it that tests it."""

    def __init__(
        self,
        serve: Serve,
        argv: Sequence[str],
        place: Path,
        limits: SandboxLimits,
        *,
        show: Sequence[str] = (),
        run_files: Sequence[str] = (),
    ) -> None:
        """argv: the command. place: a folder for the copies of its programs. show, run_files: as in view.view_of.
        Raises ConfigError if the sandbox does not hold here."""
        self._serve, self._limits = serve, limits
        self._filter = filter_for(os.uname().machine, is_command=True)
        binaries = dict.fromkeys((os.path.realpath(sys.executable), binary_of(argv[0])))
        copies = {path: _unreadable_copy(path, place, number) for number, path in enumerate(binaries)}
        self._view = view_of(argv, show=show, run_files=run_files, replaced=copies)
        self._isolation = Isolation(self._view, limits, shares_memory=True, missing=f"{_MISSING}{_INSTEAD}")
        if self._isolation.is_root:
            _refuse_closed([word for word in argv if Path(word).is_absolute() and Path(word).is_file()])
        home = place / "test"
        home.mkdir(mode=0o700)
        fault = self._isolation.settle(lambda: self._tested(home))
        if fault is not None:
            raise ConfigError(f"environment.sandbox=true does not hold here: {fault}. {NEEDS}. Open them, {_INSTEAD}")
        isolation = self._isolation
        self.no_groups = isolation.no_groups
        self.bounds = tuple(bounds_of_command(limits, has_group=isolation.has_groups, is_counted=isolation.is_counted))

    def argv(self, argv: Sequence[str], workspace: Path, port: int, control: int, filter: int) -> list[str]:
        """Return the command line of `argv` in the sandbox. control: an inherited descriptor, the other end of the
        socket for `serving`. filter: an inherited descriptor from `new_filter`."""
        limits = self._limits
        bounds = {
            resource.RLIMIT_DATA: limits.memory_mb * MIB,
            resource.RLIMIT_NPROC: limits.processes,
            resource.RLIMIT_NOFILE: limits.open_files,
            resource.RLIMIT_CORE: 0,
        }
        door = [sys.executable, "-I", "-S", "-c", _DOOR, str(control), str(port), json.dumps([*bounds.items()])]
        return [*self._isolation.argv(Home(path=str(workspace), is_bound=True), filter), *door, *argv]

    def new_filter(self) -> int:
        """Return a descriptor from which the system call filter can be read once."""
        filter = os.memfd_create("filter")
        os.write(filter, self._filter)
        os.lseek(filter, 0, os.SEEK_SET)
        return filter

    def hand_over(self, workspace: Path) -> None:
        """Give the folder and its files to the user that the command runs as."""
        if self._isolation.is_root:
            for folder, _, files in os.walk(workspace):
                for path in (Path(folder), *(Path(folder, name) for name in files)):
                    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    @asynccontextmanager
    async def serving(self, channel: socket.socket, begins: Callable[[int], None]) -> AsyncIterator[None]:
        """Admit and serve the command while it runs. begins: called with the command's process id before it begins."""
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        group = self._isolation.new_group()
        handing = asyncio.get_running_loop().create_task(self._hand_over(channel, group, begins))
        try:
            yield
        finally:
            handing.cancel()
            await asyncio.wait((handing,))
            self._isolation.remove_group(group)
        if not handing.cancelled():
            handing.result()

    def close(self) -> None:
        self._isolation.close()

    async def _hand_over(self, channel: socket.socket, group: Path | None, begins: Callable[[int], None]) -> None:
        loop, is_here = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(channel, is_here.set)
        try:
            await is_here.wait()
        finally:
            loop.remove_reader(channel)
        pid, opened = _received(channel)
        if opened is None:
            return  # the process ended before the command began: its exit code says why
        async with self._serve(opened):
            try:
                self._isolation.admit(group, pid)
            except OSError as e:
                channel.shutdown(socket.SHUT_RDWR)
                raise EnvironmentFailure(f"the command cannot be bounded: {e}", kind="sandbox") from e
            begins(pid)
            channel.send(b"G")
            await asyncio.Event().wait()

    def _tested(self, home: Path) -> str | None:
        """Return what does not hold; None if all holds. The time limits are generous, so that a slow machine does not
        fail."""
        self.hand_over(home)
        isolation = self._isolation
        code = self_test(self._view, self._limits, is_counted=isolation.is_counted, is_command=True)
        group = isolation.new_group()
        with ExitStack() as held:
            ours, theirs, life, control = (held.enter_context(end) for _ in range(2) for end in socket.socketpair())
            filter = self.new_filter()
            held.callback(os.close, filter)
            held.callback(isolation.remove_group, group)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.settimeout(START_S)
            command = self.argv([sys.executable, "-I", "-S", "-c", code], home, 0, theirs.fileno(), filter)
            keeper = subprocess.Popen(
                [sys.executable, "-P", worker.__file__, str(os.getpid()), os.devnull, *command],
                stdin=control.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), filter),
            )
            theirs.close()
            control.close()
            try:
                pid, opened = _received(ours)
                if opened is not None:
                    opened.close()
                    isolation.admit(group, pid)
                    ours.send(b"G")
                printed, _ = keeper.communicate(timeout=START_S)
            except (OSError, subprocess.TimeoutExpired) as e:
                return f"its test did not end: {e}"
            finally:
                life.close()  # makes the keeper end all remaining processes
                keeper.wait()
        return fault_in(printed, keeper.returncode)


def _received(channel: socket.socket) -> tuple[int, socket.socket | None]:
    """Return the process id at the door, reported by the kernel, and the socket it opened; None if it has ended."""
    room = socket.CMSG_SPACE(CREDENTIALS.size) + socket.CMSG_SPACE(array.array("i").itemsize)
    _, notes, _, _ = channel.recvmsg(1, room)
    pid, opened = 0, None
    for level, kind, data in notes:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid = CREDENTIALS.unpack(data)[0]
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            opened = socket.socket(fileno=array.array("i", data)[0])
    return pid, opened


def _unreadable_copy(path: str, place: Path, number: int) -> str:
    copy = place / f"program-{number}"
    shutil.copyfile(path, copy)
    copy.chmod(0o111)
    return str(copy)


def _refuse_closed(files: Sequence[str]) -> None:
    for path in files:
        if not Path(path).stat().st_mode & 0o004:
            raise ConfigError(
                f"environment.sandbox=true: {path} can be read by its owner alone, and the command runs as another "
                f"user; let all read it (chmod o+r {path})"
            )
