"""Single durable operations: each can be watched and made to fail; an OSError becomes a StorageError."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from agentgrpo.errors import AgentGrpoError, StorageError

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Operation(NamedTuple):
    """One durable operation, about to happen. `kind`: mkdir, write, fsync, rename, truncate or delete."""

    kind: str
    path: Path
    size: int = 0
    """Bytes to write; 0 for every other kind."""


Hook = Callable[[Operation], int | None]

_hook: Hook | None = None


@contextmanager
def injected(hook: Hook) -> Iterator[None]:
    """Fault injection: within the block `hook` is called before every durable operation of this process. It may raise,
    or return how many bytes the file system shall take of a write."""
    global _hook
    outer, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = outer


def before(kind: str, path: Path, size: int = 0) -> int:
    """Announce one operation; returns how many of the `size` bytes to hand over."""
    taken = _hook(Operation(kind, path, size)) if _hook else None
    return size if taken is None else taken


def storage_error(path: Path, needed: int, cause: object) -> StorageError:
    """The error for a write of `needed` bytes (0 = unknown) to `path` that failed because of `cause`."""
    number = cause.errno if isinstance(cause, OSError) else None
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    needs = f"{needed} bytes needed, " if needed else ""
    advice = "; free space (or raise the quota) and go on with `agentgrpo resume`" if number in _OUT_OF_SPACE else ""
    error = StorageError(f"{path}: {reason}: {needs}{_free_bytes(path)} bytes free{advice}")
    error.errno = number
    return error


@contextmanager
def storage(path: Path, needed: int = 0) -> Iterator[None]:
    """An OSError of the block leaves it as a StorageError about `path`."""
    try:
        yield
    except AgentGrpoError:
        raise
    except OSError as e:
        raise storage_error(path, needed, e) from e


def _free_bytes(path: Path) -> int:
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def require_free_space(path: Path, needed: int) -> None:
    """Raises StorageError unless the file system that holds (or will hold) `path` has `needed` bytes free."""
    if _free_bytes(path) < needed:
        raise storage_error(path, needed, OSError(errno.ENOSPC, "not enough free space"))


def write(fd: int, data: bytes, path: Path) -> None:
    """All of `data`: the file system may take less per call, and says that it is full only the next time."""
    rest = memoryview(data)
    while rest:
        taken = os.write(fd, rest[: before("write", path, len(rest))])
        if taken == 0:
            raise OSError(errno.EIO, "the file system takes no bytes")
        rest = rest[taken:]


def fsync(fd: int, path: Path) -> None:
    before("fsync", path)
    os.fsync(fd)


def fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(fd, path)
    except OSError as e:
        if e.errno != errno.EINVAL:  # how network file systems say that directories need no sync
            raise
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Durable only once the target's parent directory is synced."""
    before("rename", target)
    source.replace(target)


def delete_tree(path: Path) -> None:
    before("delete", path)
    shutil.rmtree(path)


def beside(path: Path, kind: str) -> Path:
    """A sibling of `path` that `sweep_leftovers` knows by its name; `kind` is tmp or old."""
    return path.with_name(f".{kind}-{secrets.token_hex(4)}-{path.name}")


def ensure_directory(path: Path) -> None:
    """Create `path` and its missing parents, each one's entry synced."""
    if path.is_dir():
        return  # as it nearly always is
    with storage(path):
        for directory in reversed([p for p in (path, *path.parents) if not p.exists()]):
            before("mkdir", directory)
            directory.mkdir(exist_ok=True)
            fsync_directory(directory.parent)
