"""The program behind an attempt: an async function in this process, or a command with all that it starts."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from agentgrpo.core.errors import ConfigError, EnvironmentFailure, boundary
from agentgrpo.core.outside import call_once, called
from agentgrpo.environments.program.sandbox import CommandSandbox
from agentgrpo.services import worker

TASK_FILE = "task.json"
API_KEY = "agentgrpo"
"""Endpoints ask for none; clients will not start without."""
MAX_TAIL = 64 * 1024
"""Bytes kept of what a program prints last."""
_SHOWN = 600
_KILL_S, _POLL_S = 5.0, 0.002
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a program is given."""

    task: Mapping[str, Any]
    """The task's columns."""
    base_url: str
    api_key: str
    workspace: Path
    """A directory of the attempt's own."""
    reward_url: str

    @property
    def port(self) -> int:
        """Of all its URLs."""
        return urlsplit(self.base_url).port or 80


class Program(Protocol):
    async def run(self, call: Call) -> object:
        """To its end; what it says of the episode: a number, numbers and an `answer` by name, an answer, or None. A
        cancelled one is stopped. Raises EnvironmentFailure where it fails."""
        ...


class FunctionProgram:
    """`environment.function=my_agent:run`: called with what its parameters are named after (task, base_url, api_key,
    workspace, reward_url), or with one object that has all of these."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises ConfigError for parameters of other names."""
        self._function = function
        self._name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)}"
        known = tuple(Call.__dataclass_fields__)
        self._parameters = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        self._takes_all = len(self._parameters) == 1 and self._parameters[0] not in known
        if not self._takes_all and (odd := [name for name in self._parameters if name not in known]):
            raise ConfigError(
                f"environment.function={self._name} asks for {', '.join(odd)}; it is given {', '.join(known)}, or one "
                "object that has them"
            )

    async def run(self, call: Call) -> object:
        """A plain function runs in a thread, which nothing can stop: its requests come to nothing."""
        given = {} if self._takes_all else {name: getattr(call, name) for name in self._parameters}
        function = partial(self._function, *([call] if self._takes_all else []), **given)
        failure = partial(EnvironmentFailure, kind="program")
        if not inspect.iscoroutinefunction(self._function):
            result = await asyncio.to_thread(called, function)
            with boundary(failure, self._name):
                return result.result()
        return await call_once(failure, self._name, f"task {call.task['id']}", function)


class CommandProgram:
    """`environment.command="python my_agent.py"`: started in the attempt's workspace, without a shell; ended with all
    that it has started."""

    def __init__(self, command: str, *, sandbox: CommandSandbox | None = None) -> None:
        """Words that name a file here are that file wherever the program runs; python is the one that runs this. Raises
        ConfigError where there is no such program."""
        try:
            words = shlex.split(command)
        except ValueError as e:
            raise ConfigError(f"environment.command={command}: {e}; close what is open") from e
        if not words or shutil.which(words[0]) is None:
            raise ConfigError(
                f"environment.command={command}: there is no program {words[0] if words else ''!r}; give one on the "
                "PATH, or the path to one"
            )
        self._shown, self._sandbox = command, sandbox
        found = [sys.executable if words[0] == "python" else str(shutil.which(words[0])), *words[1:]]
        self._argv = [str(Path(word).absolute()) if Path(word).is_file() else word for word in found]

    async def run(self, call: Call) -> object:
        (call.workspace / TASK_FILE).write_text(json.dumps(call.task, default=str), encoding="utf-8")
        async with AsyncExitStack() as held:
            argv, inherited = self._argv, list[int]()
            if self._sandbox is not None:
                ours, theirs = socket.socketpair()
                held.enter_context(ours)
                held.enter_context(theirs)
                await held.enter_async_context(self._sandbox.serving(ours))
                inherited = [theirs.fileno()]
                argv = self._sandbox.argv(argv, call.workspace, call.port, theirs.fileno())
            process = _Process(argv, call, inherited)
            try:
                code = await process.ended()
            finally:
                await process.end()
        output = process.output.content.decode("utf-8", "replace")
        if code:
            said = process.errors.content.decode("utf-8", "replace").strip()[-_SHOWN:]
            raise EnvironmentFailure(f"{self._shown}: exit code {code}: {said or '(it said nothing)'}", kind="program")
        return _last_json(output)


class _Process:
    """A command under a keeper (services.worker), which ends it with all that it has started, daemons too."""

    def __init__(self, argv: list[str], call: Call, inherited: Sequence[int]) -> None:
        """Raises EnvironmentFailure."""
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": call.base_url,
            "OPENAI_API_KEY": call.api_key,
            "ANTHROPIC_BASE_URL": call.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": call.api_key,
            "AGENTGRPO_REWARD_URL": call.reward_url,
            "AGENTGRPO_TASK": str(call.workspace / TASK_FILE),
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"])),
            "PYTHONHASHSEED": "0",  # or its sets would have another order every time
        }
        environment["no_proxy"] = environment["NO_PROXY"]
        with ExitStack() as theirs:
            self._channel, control = socket.socketpair()
            theirs.enter_context(control)
            self._channel.setblocking(False)
            ends = [os.pipe(), os.pipe()]
            for _, end in ends:
                theirs.callback(os.close, end)
            try:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", worker.__file__, str(os.getpid()), str(call.workspace / TASK_FILE), *argv],
                    stdin=control.fileno(),
                    stdout=ends[0][1],
                    stderr=ends[1][1],
                    cwd=call.workspace,
                    env=environment,
                    pass_fds=inherited,
                    start_new_session=True,
                )
            except OSError as e:
                self._channel.close()
                for end, _ in ends:
                    os.close(end)
                raise EnvironmentFailure(f"no process can be started: {e.strerror}", kind="program") from e
        self.output, self.errors = Tail(ends[0][0]), Tail(ends[1][0])
        self._ending: asyncio.Task[None] | None = None

    async def ended(self) -> int:
        """Its exit code; 128 + n where signal n killed it. The keeper ends last, and its end of the socket with it."""
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(self._channel, 1)
        for tail in (self.output, self.errors):
            tail.drain()
        return self._keeper.wait()

    async def end(self) -> None:
        """All of it is gone when this returns; harmless where it has ended. A second cancellation does not stop it."""
        self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            self._keeper.terminate()
            for _ in range(round(_KILL_S / _POLL_S)):
                if self._keeper.poll() is not None:
                    break
                await asyncio.sleep(_POLL_S)
        finally:
            self._keeper.kill()
            self._keeper.wait()
            self._channel.close()
            self.output.close()
            self.errors.close()


class Tail:
    """Reads a pipe as it fills, and keeps its end."""

    def __init__(self, fd: int) -> None:
        self.content = bytearray()
        self._fd, self._loop = fd, asyncio.get_running_loop()
        self._is_open = True
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Whether there may be more at once."""
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._fd)
            return False
        self.content += chunk
        del self.content[:-MAX_TAIL]
        return True

    def drain(self) -> None:
        """What is there already; whoever wrote it has ended."""
        while self._is_open and self._read():
            pass

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)


def _last_json(output: str) -> object:
    """The last line that is a JSON number or object; None where there is none."""
    for line in reversed(output.splitlines()):
        try:
            value: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | int | float) and not isinstance(value, bool):
            return value
    return None
