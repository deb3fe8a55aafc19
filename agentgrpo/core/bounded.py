"""Code that came with data, such as a chat template, is run in a child process that has little time and memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from agentgrpo.core.errors import DataError

CPU_S = 3
"""More than a hundred times what the templates of known models take."""
MEMORY = 2**30
LENGTH = 2**24
"""Bytes of the text."""
_WAIT_S = 20.0
"""For a child that cannot even spend its time: another thread held, when it was forked, what it waits for."""
_CHILDREN = 3
"""Such a child is replaced by another one, until there were so many."""
_TEXT, _ERROR = b"t", b"e"


def bounded(work: Callable[[], str], what: str) -> str:
    """The text that `work` makes in a copy of this process. An Exception of its is raised as a ValueError that says the
    same. Raises DataError where it takes too much."""
    found = None
    for _ in range(_CHILDREN):
        if (found := _answer(work)) is not None:
            break
    said = found or b""
    if not said or len(said) > LENGTH:
        raise DataError(
            f"{what} takes more than {CPU_S} seconds, {MEMORY >> 20} MiB or {LENGTH} characters, as none does that is "
            "meant to be used; give another"
        )
    text = said[1:].decode("utf-8", "surrogatepass")
    if said[:1] == _ERROR:
        raise ValueError(text)
    return text


def _answer(work: Callable[[], str]) -> bytes | None:
    """What a child says, nothing where it has run into a limit; None where it is stuck."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, on which `work` does not wait
        child = os.fork()
    if child == 0:
        _work(work, writer)
    os.close(writer)
    try:
        return _read(reader)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(work: Callable[[], str], writer: int) -> None:
    """In the child, which ends here."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # their handlers are the parent's
        _limit(resource.RLIMIT_CPU, CPU_S)
        _limit(resource.RLIMIT_AS, _address_space() + MEMORY)
        try:
            said = _TEXT + work().encode("utf-8", "surrogatepass")
        except Exception as e:
            said = b"" if isinstance(e, MemoryError) else _ERROR + str(e).encode("utf-8", "surrogatepass")
        said = said[: LENGTH + 1]
        while said:
            said = said[os.write(writer, said) :]
    finally:
        os._exit(0)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _address_space() -> int:
    """What this process has of it; 2**44 where the system does not say, beyond which nothing is."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 2**44


def _read(reader: int) -> bytes | None:
    """All that comes; None where nothing does for too long."""
    parts: list[bytes] = []
    ready, ends = select.poll(), time.monotonic() + _WAIT_S
    ready.register(reader)
    while ready.poll(max(0.0, ends - time.monotonic()) * 1000):
        if not (part := os.read(reader, 1 << 16)):
            return b"".join(parts)
        parts.append(part)
    return None
