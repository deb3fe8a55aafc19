"""The two processes in which a user's function is called again and again: a script with the standard library only.

    trainer --socket--> keeper --fork--> worker: imports the function, then a request, a reply, a request, ...

The keeper runs no external code, so it always reacts. When the trainer sends SIGTERM, closes the socket or is gone for
any reason, the keeper kills the worker and all processes that the worker has started. That includes daemons, which
become children of the keeper (PR_SET_CHILD_SUBREAPER). When the worker dies, the keeper kills the rest. If the keeper
dies first, the kernel kills the worker (PR_SET_PDEATHSIG).

The keeper can also run a command: `worker.py TRAINER_PID INPUT COMMAND...`. The command's input is the file INPUT, or
the inherited descriptor of this number. Its process id is sent to the trainer before it begins.

A message is 4 bytes of length, big-endian, and as many bytes of JSON. A reply has the number of its request. If the
function forks, only the worker replies. The package is not imported, because that would take longer than most
functions. Only core/parts.py, which turns a result into text, is loaded by its path.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import re
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_MAX_ERROR_CHARS, _MAX_DETAIL_CHARS = 500, 4000
_WATCH_S = 1.0
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
"""Address in the default text of an object: it tells the policy nothing, and differs from run to run."""
_END_S = 5.0


def main(trainer: int, *command: str) -> NoReturn:
    """Run the keeper; descriptor 0 is the socket to the trainer. command: the input file, then the words of a command
    to run instead of a function."""
    _prctl(_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            _execute(keeper, *command) if command else _serve(keeper)
        finally:
            os._exit(1 if not command else 127)
    signal.signal(signal.SIGTERM, lambda *_: _end(128 + signal.SIGTERM, worker))
    _watch(worker, trainer)


def _watch(worker: int, trainer: int) -> NoReturn:
    poll = select.poll()
    poll.register(0, 0)  # only for its end
    wait_s = 0.05
    with suppress(AttributeError, OSError):
        poll.register(os.pidfd_open(worker), select.POLLIN)
        wait_s = _WATCH_S
    while True:
        ready = dict(poll.poll(1000 * wait_s))
        if 0 in ready or os.getppid() != trainer:
            _end(0, worker)
        for pid, status in _dead():
            if pid == worker:
                _end(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), worker)


def _end(code: int, worker: int) -> NoReturn:
    """Kill all remaining processes of the worker, in rounds: the keeper inherits the children of the dead."""
    late = time.monotonic() + _END_S
    while time.monotonic() < late:
        for pid in _children(worker):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.001)
    os._exit(code)


def _dead() -> list[tuple[int, int]]:
    found = []
    with suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(one)
    return found


def _children(worker: int) -> list[int]:
    """Return the children of this process, including unreaped ones, so that their ids cannot have been reused."""
    try:
        return [int(pid) for pid in Path("/proc/thread-self/children").read_text(encoding="ascii").split()]
    except OSError:
        return [worker]


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _execute(keeper: int, source: str, *argv: str) -> None:
    """Replace this process by the program."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() == keeper:
        _go_first()
        with suppress(OSError):  # the trainer is gone
            os.write(0, b"%d\n" % os.getpid())
        opened = int(source) if source.isdigit() else os.open(source, os.O_RDONLY)
        os.dup2(opened, 0)
        os.close(opened)
        os.execvp(argv[0], argv)


# --- the worker


def _serve(keeper: int) -> None:
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    worker = os.getpid()
    if os.getppid() != keeper:
        return
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # the function's output is dropped
        os.dup2(nothing, fd)
    _go_first()
    hello = _receive(channel)
    _parts()
    _bound_memory(hello["memory"])
    sys.argv, sys.path[:] = [""], hello["path"]
    try:
        module, _, name = hello["location"].partition(":")
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except BaseException as e:
        _send(channel, {"error": _last_line(e)}, hello)
        return
    _send(channel, {"text": ""}, hello)
    while True:
        request = _receive(channel)
        reply = _reply(function, request, hello["max_chars"])
        if os.getpid() != worker:  # the function has forked, and this is the child
            os._exit(0)
        _send(channel, reply, request)


def _reply(function: Callable[..., Any], request: dict[str, Any], max_chars: int) -> dict[str, str]:
    try:
        _seed(request["seed"])
        arguments = request["arguments"]
        if request["workspace"] is not None:
            arguments["workspace"] = Path(request["workspace"])
        result = function(**arguments)
        if isinstance(result, Coroutine):
            import asyncio  # slower than all other imports together, and rarely needed

            result = asyncio.run(result)
        text = _parts().text_of(result, "what it returns")
        if not isinstance(result, str) and _ADDRESS.search(text):
            name = type(result).__name__
            raise TypeError(f"the tool returned a {name}; a text, or a number, list or mapping of such, is needed")
        return {"text": text[:max_chars].encode("utf-8", "replace").decode("utf-8")}
    except BaseException as e:
        if isinstance(e, _parts().NotText):
            return {"refused": str(e)}
        detail = "".join(traceback.format_exception(e))[-_MAX_DETAIL_CHARS:]
        reply = {"error": _last_line(e), "detail": detail.encode("utf-8", "replace").decode("utf-8")}
        return {**reply, "memory": "short"} if isinstance(e, MemoryError) else reply


@cache
def _parts() -> Any:
    path = Path(__file__).parents[1] / "core" / "parts.py"
    spec = spec_from_file_location("agentgrpo_parts", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _go_first() -> None:
    """Let the system end this process and its children first if memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _bound_memory(num_bytes: int) -> None:
    """Limit the memory that is written to, not the address space: libraries reserve much of it and use little."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    num_bytes = num_bytes if most == resource.RLIM_INFINITY else min(num_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def _seed(seed: str) -> None:
    """Seed random numbers by the episode and the arguments, so that earlier calls in this process have no influence."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(random.getrandbits(32))


def _last_line(error: BaseException) -> str:
    line = " ".join(traceback.format_exception_only(error)[-1].split())
    return line[:_MAX_ERROR_CHARS].encode("utf-8", "replace").decode("utf-8")


def _receive(channel: socket.socket) -> Any:
    size = int.from_bytes(_exactly(channel, 4), "big")
    return json.loads(_exactly(channel, size))


def _exactly(channel: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        more = channel.recv(size - len(got))
        if not more:
            os._exit(0)  # the trainer has closed it
        got += more
    return bytes(got)


def _send(channel: socket.socket, reply: dict[str, str], request: dict[str, Any]) -> None:
    body = json.dumps({**reply, "number": request["number"]}).encode("ascii")
    channel.sendall(len(body).to_bytes(4, "big") + body)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
