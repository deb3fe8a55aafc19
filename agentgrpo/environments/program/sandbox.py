"""A command behind bubblewrap: it writes in its workspace alone, sees no process but its own, and reaches the endpoint
and no other network.

    keeper --> bwrap: namespaces --> door: opens a socket at the endpoint's address, sends it out, becomes the command

Its network is one of its own, in which the endpoint's address is free. The socket that is opened there is served by the
endpoint out here, so its URL stays as it is. It is not the sandbox of the python tool: an agent needs its libraries and
files, so it reads all that this user can read, and neither its memory nor its processes are bounded.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from agentgrpo.core.errors import ConfigError

Serve: TypeAlias = Callable[[socket.socket], AbstractAsyncContextManager[None]]
"""The endpoint serves a socket too, while this lasts."""

_DOOR = """
import os, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as opened:
    socket.send_fds(channel, [b"D"], [opened.fileno()])
channel.recv(1)
channel.close()
os.execvp(sys.argv[3], sys.argv[3:])
"""


class CommandSandbox:
    def __init__(self, serve: Serve) -> None:
        """Raises ConfigError where it cannot hold."""
        self._serve = serve
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise ConfigError(
                "environment.sandbox=true runs the command in bubblewrap, and there is no bwrap here; install it "
                "(apt-get install bubblewrap), or leave the sandbox out"
            )
        self._bwrap = bwrap
        tried = subprocess.run([*self._isolated(Path("/")), sys.executable, "-S", "-c", ""], capture_output=True)
        if tried.returncode:
            said = tried.stderr.decode("utf-8", "replace").strip()[-300:]
            raise ConfigError(
                f"environment.sandbox=true does not hold here: {said}; it needs user namespaces that are open to this "
                "user, or leave the sandbox out"
            )

    def argv(self, argv: Sequence[str], workspace: Path, port: int, control: int) -> list[str]:
        """control: a descriptor that it inherits, the other end of what `serving` is given."""
        door = [sys.executable, "-I", "-S", "-c", _DOOR, str(control), str(port)]
        return [*self._isolated(workspace), *door, *argv]

    @asynccontextmanager
    async def serving(self, channel: socket.socket) -> AsyncIterator[None]:
        """While the command runs."""
        handing = asyncio.get_running_loop().create_task(self._hand_over(channel))
        try:
            yield
        finally:
            handing.cancel()
            await asyncio.wait((handing,))
        if not handing.cancelled():
            handing.result()

    async def _hand_over(self, channel: socket.socket) -> None:
        loop, is_here = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(channel, is_here.set)
        try:
            await is_here.wait()
        finally:
            loop.remove_reader(channel)
        _, descriptors, *_ = socket.recv_fds(channel, 1, 1)
        if not descriptors:
            return  # it has ended before it began: its exit code says why
        async with self._serve(socket.socket(fileno=descriptors[0])):
            channel.send(b"G")
            await asyncio.Event().wait()

    def _isolated(self, workspace: Path) -> list[str]:
        own = ["--bind", str(workspace), str(workspace), "--setenv", "TMPDIR", str(workspace)]
        return [
            *(self._bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *(own if workspace != Path("/") else ()),
            *("--chdir", str(workspace), "--"),
        ]
