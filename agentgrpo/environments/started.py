"""A third-party server that a run starts, and ends together with all processes that the server started."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from agentgrpo.core.concurrency import PerLoop
from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.services import worker

_POLL_S = 0.05
_END_S = 5.0
_SHOWN = 600


def words_of(command: str, setting: str) -> list[str]:
    """Split a command as a shell does. "python" is the running interpreter; a program that is not on the PATH may lie
    beside it. Raises ConfigError, which names `setting`, if there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as e:
        raise ConfigError(f"{setting}={command}: {e}; close what is open") from e
    name = words[0] if words else ""
    beside = str(Path(sys.executable).parent / name)
    found = sys.executable if name == "python" else shutil.which(name) or shutil.which(beside)
    if not name or found is None:
        raise ConfigError(
            f"{setting}={command}: there is no program {name!r}; give one on the PATH, or the path to one"
        )
    return [found, *words[1:]]


class StartedServer:
    """A server that is started when it is first needed, and again if it has died since."""

    def __init__(
        self,
        argv: Callable[[], Sequence[str]],
        *,
        shown: str,
        is_up: Callable[[], Awaitable[bool]],
        timeout_s: float,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """argv: returns the command of the process; called for each start. is_up: whether the server answers.
        timeout_s: time within which it must answer. variables: environment variables, in addition to those of this
        process."""
        self._argv, self._shown, self._is_up, self._timeout_s = argv, shown, is_up, timeout_s
        self._variables = variables
        self._locks: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)
        self._process: _Kept | None = None

    async def ready(self) -> None:
        """Wait until the server answers. Raises EnvironmentFailure with the end of its output if it does not."""
        if self._process is not None and self._process.is_alive:
            return
        async with self._locks.get():
            if self._process is not None and self._process.is_alive:
                return
            await self.close()
            process = _Kept(self._argv(), self._variables)
            late = time.monotonic() + self._timeout_s
            try:
                while not await self._is_up():
                    if not process.is_alive:
                        raise EnvironmentFailure(f"{self._shown} has ended: {process.said}", kind="server")
                    if time.monotonic() > late:
                        why = f"{self._shown} did not answer within {self._timeout_s:g} s: {process.said}"
                        raise EnvironmentFailure(f"{why}; raise environment.start_timeout_s", kind="server")
                    await asyncio.sleep(_POLL_S)
            except BaseException:
                process.end()
                raise
            self._process = process

    async def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(process.end)


class _Kept:
    """A process under a keeper (services.worker), which ends it with all that it started, even if this process dies."""

    def __init__(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Raises EnvironmentFailure."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115, closed by `end`
        self._channel, control = socket.socketpair()
        with control:
            try:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", worker.__file__, str(os.getpid()), os.devnull, *argv],
                    stdin=control.fileno(),
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables},
                    start_new_session=True,
                )
            except OSError as e:
                self._channel.close()
                raise EnvironmentFailure(f"no process can be started: {e.strerror}", kind="server") from e
        self._at_exit = weakref.finalize(self, self._channel.close)

    @property
    def is_alive(self) -> bool:
        return self._keeper.poll() is None

    @property
    def said(self) -> str:
        """The end of its output."""
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, end - _SHOWN))
        return " ".join(self._output.read().decode("utf-8", "replace").split()) or "(it said nothing)"

    def end(self) -> None:
        self._at_exit()
        try:
            self._keeper.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._output.close()
