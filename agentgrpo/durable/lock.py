"""One process per run directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentgrpo.durable.operations import ensure_directory, storage
from agentgrpo.errors import RunDirectoryError

_held: set[int] = set()


def _forget_in_child() -> None:
    for fd in _held:  # or a forked child would keep the lock of a parent that died
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class RunLock:
    """Holds `run_dir` for this process until released, at the latest when the process dies, however it dies. The lock
    is the kernel's (flock); the file's text only names the holder. Raises RunDirectoryError where another process has
    it, and also where this process has it already."""

    def __init__(self, run_dir: Path) -> None:
        ensure_directory(run_dir)
        path = run_dir / "run.lock"
        with storage(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(self._fd, path):  # a refused run has taken its file away between the two
                    raise BlockingIOError
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, json.dumps(_this_process()).encode(), 0)
            except BlockingIOError:
                holder = _describe_holder(os.pread(self._fd, 4096, 0))
                os.close(self._fd)
                raise RunDirectoryError(
                    f"{run_dir} is in use by {holder}; wait for it, stop it, or choose another run.dir"
                ) from None
            except OSError:
                os.close(self._fd)
                raise
        _held.add(self._fd)

    def release(self) -> None:
        if self._fd in _held:
            _held.discard(self._fd)
            os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def _is_at(fd: int, path: Path) -> bool:
    """A lock on a file that is no longer there keeps nobody out."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def _this_process() -> dict[str, Any]:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    boot = boot_id.read_text().strip() if boot_id.exists() else ""
    return {"boot_id": boot, "host": socket.gethostname(), "pid": os.getpid()}


def _describe_holder(text: bytes) -> str:
    try:
        holder = json.loads(text)
        here = holder["boot_id"] == _this_process()["boot_id"]
        return f"process {holder['pid']}" + ("" if here else f" on host {holder['host']}")
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has the lock but has not written its name yet
