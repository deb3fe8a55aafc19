"""Run code that came with data, such as a chat template, in a child process with limits on time and memory."""

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
"""Over a hundred times the CPU seconds that the templates of known models take."""
MEMORY = 2**30
LENGTH = 2**24
"""Largest text, in bytes."""
_WAIT_S = 20.0
"""Seconds until a child counts as stuck: it may wait for a lock that another thread held at the fork."""
_CHILDREN = 3
"""Maximum number of children: a stuck child is replaced by a new one."""
_TEXT, _ERROR = b"t", b"e"


def bounded(work: Callable[[], str], what: str) -> str:
    """Return the text that `work` makes in a forked copy of this process. Raises ValueError with the text of an
    Exception that `work` raises, and DataError if `work` exceeds a limit."""
    found = None
    for _ in range(_CHILDREN):
        if (found := _answer(work)) is not None:
            break
    said = found or b""
    if not said or len(said) > LENGTH:
        raise DataError(
            f"{what} takes more than {CPU_S} seconds, {MEMORY >> 20} MiB or {LENGTH} characters, far more than a "
            "usable one needs; give another"
        )
    text = said[1:].decode("utf-8", "surrogatepass")
    if said[:1] == _ERROR:
        raise ValueError(text)
    return text


def _answer(work: Callable[[], str]) -> bytes | None:
    """Return the bytes that a child sends: b"" if it ran into a limit, None if it is stuck."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks beside threads; `work` waits for none
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
    """Run `work` in the child, send its text or its error, and exit."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # their handlers belong to the parent
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
    """Return this process's address space in bytes; 2**44, a safe upper bound, if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 2**44


def _read(reader: int) -> bytes | None:
    """Return all bytes up to the end of the pipe; None if the pipe has not ended after _WAIT_S."""
    parts: list[bytes] = []
    ready, ends = select.poll(), time.monotonic() + _WAIT_S
    ready.register(reader)
    while ready.poll(max(0.0, ends - time.monotonic()) * 1000):
        if not (part := os.read(reader, 1 << 16)):
            return b"".join(parts)
        parts.append(part)
    return None
