"""The program behind an attempt: an async function in this process, or a command with every process it starts."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
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
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from agentgrpo.core.errors import ConfigError, EnvironmentFailure, boundary
from agentgrpo.core.outside import OwnThread, call_once
from agentgrpo.environments.program.sandbox import CREDENTIALS, MAX_TAIL, CommandSandbox
from agentgrpo.services import worker

TASK_FILE = "task.json"
API_KEY = "agentgrpo"
"""The endpoint does not check it; clients refuse to start without a key."""
_SHOWN = 600
_KILL_S, _POLL_S = 5.0, 0.002
_CHUNK = 64 * 1024
_MAX_WRITERS = 16
"""Processes whose last output is kept; the command's own output is never dropped."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of a program for one attempt."""

    task: Mapping[str, Any]
    """The task's columns."""
    base_url: str
    api_key: str
    workspace: Path
    """A directory for this attempt only."""
    reward_url: str
    withheld: tuple[str, ...] = ()
    """Grading columns that are withheld from the program."""
    secret: frozenset[str] = frozenset()
    """The grading columns; they are not written to the task file."""

    @property
    def port(self) -> int:
        """The port of both URLs."""
        return urlsplit(self.base_url).port or 80


class Program(Protocol):
    async def run(self, call: Call) -> object:
        """Run to the end. Return the result for the episode: a number, a mapping of numbers with an optional `answer`,
        an answer as text, or None. Cancellation stops the program. Raises EnvironmentFailure if it fails."""
        ...


class FunctionProgram:
    """`environment.function=my_agent:run`: called with the arguments that its parameters name (task, base_url, api_key,
    workspace, reward_url), or with one Call that holds them all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises ConfigError for a required parameter with another name."""
        self._function = function
        self._name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)}"
        known = ("task", "base_url", "api_key", "workspace", "reward_url")
        self._parameters = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        self._takes_all = len(self._parameters) == 1 and self._parameters[0] not in known
        if not self._takes_all and (odd := [name for name in self._parameters if name not in known]):
            raise ConfigError(
                f"environment.function={self._name} asks for {', '.join(odd)}; allowed are {', '.join(known)}, or a "
                "single parameter for all of them"
            )

    async def run(self, call: Call) -> object:
        """A plain function runs in a thread, which cannot be stopped; after the attempt its requests are refused."""
        given = {} if self._takes_all else {name: getattr(call, name) for name in self._parameters}
        function = partial(self._function, *([call] if self._takes_all else []), **given)
        failure = partial(EnvironmentFailure, kind="program")
        if not inspect.iscoroutinefunction(self._function):
            thread = OwnThread(f"agentgrpo-{self._name}")
            try:
                result = await thread.call(function)
            finally:
                thread.end()
            with boundary(failure, self._name):
                return result.result()
        return await call_once(failure, self._name, f"task {call.task['id']}", function)


class CommandProgram:
    """`environment.command="python my_agent.py"`: started in the attempt's workspace, without a shell, and ended with
    every process it has started.

    It reports on its standard output, a socket on which the kernel names the writing process. Only lines written by the
    command itself count; its children may write at the policy's bidding."""

    def __init__(self, command: str, *, env: Sequence[str] = ()) -> None:
        """Words that name an existing file become absolute paths; python is the current interpreter. env: names of
        environment variables that the command gets besides the usual ones. Raises ConfigError if the program or a
        variable does not exist."""
        try:
            words = shlex.split(command)
        except ValueError as e:
            raise ConfigError(f"environment.command={command}: {e}; close what is open") from e
        if not words or shutil.which(words[0]) is None:
            raise ConfigError(
                f"environment.command={command}: there is no program {words[0] if words else ''!r}; give one on the "
                "PATH, or the path to one"
            )
        if missing := [name for name in env if name not in os.environ]:
            raise ConfigError(f"environment.env: {', '.join(missing)} is not set here; set it, or leave it out")
        self._shown, self._env = command, frozenset(env)
        self.sandbox: CommandSandbox | None = None
        found = [sys.executable if words[0] == "python" else str(shutil.which(words[0])), *words[1:]]
        self.argv = [str(Path(word).absolute()) if Path(word).is_file() else word for word in found]

    async def run(self, call: Call) -> object:
        """Raises ProgramFailed."""
        public = {key: value for key, value in call.task.items() if key not in call.secret}
        (call.workspace / TASK_FILE).write_text(json.dumps(public, default=str), encoding="utf-8")
        async with AsyncExitStack() as held:
            output = held.enter_context(Output())
            argv, inherited = self.argv, list[int]()
            if self.sandbox is not None:
                ours, theirs = socket.socketpair()
                held.enter_context(ours)
                held.enter_context(theirs)
                filter = self.sandbox.new_filter()
                held.callback(os.close, filter)
                self.sandbox.hand_over(call.workspace)
                await held.enter_async_context(self.sandbox.serving(ours, output.is_by))
                inherited = [theirs.fileno(), filter]
                argv = self.sandbox.argv(argv, call.workspace, call.port, *inherited)
            process = _Process(argv, self._environment(call), call.workspace, output, inherited)
            try:
                await process.tell(json.dumps(call.task, default=str).encode())
                code = await process.ended()
            finally:
                await process.end()
        reported = _last_json(output.report)
        if code:
            words = process.errors.content.decode("utf-8", "replace").strip()[-_SHOWN:]
            failure = f"{self._shown}: exit code {code}: {words or '(it said nothing)'}{self._hint(call, words)}"
            raise ProgramFailed(failure, reported)
        if reported is None and _last_json(output.rest) is not None:
            _LOG.warning(
                "%s: a process that the command has started has printed a reward, which does not count: the command "
                "itself must print it (exec the program that does, or echo its output)",
                self._shown,
            )
        return reported

    def _environment(self, call: Call) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if _is_usual(name) or name in self._env}
        environment = {
            **given,
            "OPENAI_BASE_URL": call.base_url,
            "OPENAI_API_KEY": call.api_key,
            "ANTHROPIC_BASE_URL": call.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": call.api_key,
            "AGENTGRPO_TASK": str(call.workspace / TASK_FILE),
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"])),
            "PYTHONHASHSEED": "0",  # otherwise the order of its sets would differ in every run
        }
        environment["no_proxy"] = environment["NO_PROXY"]
        if self.sandbox is not None:
            environment |= {"HOME": str(call.workspace), "TMPDIR": "/tmp"}
        return environment

    def _hint(self, call: Call, words: str) -> str:
        """Name the setting that would give the command what its last error line lacks."""
        last = words.rpartition("\n")[2]
        kept = [n for n in os.environ if not _is_usual(n) and n not in self._env and len(n) > 3 and n in last]
        if kept:
            return f"; {kept[0]} is set here and is not handed on, unless environment.env=[{kept[0]}]"
        if name := next((name for name in call.withheld if f"KeyError: '{name}'" in last), None):
            return f"; {name} is not told, unless environment.tell=[{name}]"
        if self.sandbox is not None and "No such file or directory" in last:
            return "; in the sandbox it sees code, and the paths in environment.show=[PATH]"
        return ""


class ProgramFailed(EnvironmentFailure):
    def __init__(self, message: str, reported: object = None) -> None:
        """reported: the result that the program had printed before it failed."""
        super().__init__(message, kind="program")
        self.reported = reported

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.reported)


_USUAL = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "TMPDIR",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_PATH",
        "NODE_EXTRA_CA_CERTS",
        "JAVA_HOME",
        "TOKENIZERS_PARALLELISM",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_L2_SIZE",
        "COVERAGE_PROCESS_START",
    ]
)
"""Environment variables that every command gets: they locate and configure programs, and hold no keys."""


def _is_usual(name: str) -> bool:
    return name in _USUAL or name.startswith("LC_")


class _Process:
    """A command under a keeper (services.worker), which ends it and every process it has started, daemons included."""

    def __init__(
        self, argv: list[str], environment: Mapping[str, str], folder: Path, output: Output, inherited: Sequence[int]
    ) -> None:
        """Raises EnvironmentFailure."""
        with ExitStack() as theirs:
            self._channel, control = socket.socketpair()
            theirs.enter_context(control)
            self._channel.setblocking(False)
            source, input_end = os.pipe()
            self._input = os.fdopen(input_end, "wb", buffering=0)
            errors, errors_end = os.pipe()
            for end in (source, errors_end):
                theirs.callback(os.close, end)
            try:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", worker.__file__, str(os.getpid()), str(source), *argv],
                    stdin=control.fileno(),
                    stdout=output.theirs,
                    stderr=errors_end,
                    cwd=folder,
                    env=dict(environment),
                    pass_fds=(source, *inherited),
                    start_new_session=True,
                )
            except OSError as e:
                self._channel.close()
                self._input.close()
                os.close(errors)
                raise EnvironmentFailure(f"no process can be started: {e.strerror}", kind="program") from e
        self.output, self.errors = output, Tail(errors)
        self._writing: asyncio.WriteTransport | None = None
        self._ending: asyncio.Task[None] | None = None

    async def tell(self, text: bytes) -> None:
        """Write `text` to the command's standard input, without waiting until the command reads it."""
        loop = asyncio.get_running_loop()
        self._writing, _ = await loop.connect_write_pipe(asyncio.Protocol, self._input)
        self._writing.write(text)
        self._writing.close()

    async def ended(self) -> int:
        """Wait for the end; return the exit code, 128 + n if signal n killed the command. The keeper ends last, which
        closes its end of the socket."""
        with suppress(ConnectionError):
            while word := await asyncio.get_running_loop().sock_recv(self._channel, 32):
                self.output.may_be_by(int(word))
        for tail in (self.output, self.errors):
            tail.drain()
        return self._keeper.wait()

    async def end(self) -> None:
        """End all processes before returning; harmless if they have ended. Not interrupted by a second cancellation."""
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
            self.errors.close()
            if self._writing is None:
                self._input.close()
            elif self._writing.get_write_buffer_size():
                self._writing.abort()


class Tail:
    """Reads a pipe as it fills, and keeps the last MAX_TAIL bytes."""

    def __init__(self, fd: int) -> None:
        self.content = bytearray()
        self._fd, self._loop = fd, asyncio.get_running_loop()
        self._is_open = True
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Return whether more may be available at once."""
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
        """Read what is already there; its writers have ended."""
        while self._is_open and self._read():
            pass

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)


class Output:
    """The standard output of a command, by writing process: a socket with credentials from the kernel (SO_PASSCRED in
    unix(7)). A child can neither reopen it, as it could reopen a pipe, nor write as its parent."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ours.setblocking(False)
        self._ends: dict[int, bytearray] = {}
        self._author: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    @property
    def theirs(self) -> int:
        """The descriptor that the command writes to."""
        return self._theirs.fileno()

    def is_by(self, pid: int) -> None:
        """Note that process `pid` is the command."""
        self._author = pid

    def may_be_by(self, pid: int) -> None:
        """Note that process `pid` is the command unless `is_by` has named it: in the sandbox it is a child of `pid`."""
        if self._author is None:
            self._author = pid

    @property
    def report(self) -> str:
        """The last output of the command itself."""
        return self._ends.get(self._author or 0, b"").decode("utf-8", "replace")

    @property
    def rest(self) -> str:
        """The last output of other processes."""
        return "\n".join(end.decode("utf-8", "replace") for pid, end in self._ends.items() if pid != self._author)

    def _read(self) -> bool:
        """Return whether more may be available at once."""
        try:
            chunk, notes, _, _ = self._ours.recvmsg(_CHUNK, socket.CMSG_SPACE(CREDENTIALS.size))
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._ours)
            return False
        pid = CREDENTIALS.unpack(notes[0][2])[0]
        end = self._ends.pop(pid, bytearray())
        end += chunk
        del end[:-MAX_TAIL]
        self._ends[pid] = end  # the latest writer last
        if len(self._ends) > _MAX_WRITERS:
            del self._ends[next(other for other in self._ends if other != self._author)]
        return True

    def drain(self) -> None:
        """Read what is already there; its writers have ended."""
        while self._read():
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()


def _last_json(output: str) -> object:
    """Return the value of the last line that is a JSON number or object, or None."""
    for line in reversed(output.splitlines()):
        try:
            value: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | int | float) and not isinstance(value, bool):
            return value
    return None
