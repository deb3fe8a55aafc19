"""Durable files: whole ones, and logs that only grow."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agentgrpo.durable.operations import (
    before,
    beside,
    ensure_directory,
    fsync,
    fsync_directory,
    rename,
    storage,
    write,
)
from agentgrpo.errors import CheckpointError, StorageError


def write_atomic(path: Path, data: bytes) -> None:
    """Create or replace `path`: readers see the old bytes or all of the new ones."""
    write_each_atomic({path: data})


def write_each_atomic(files: Mapping[Path, bytes]) -> None:
    """`write_atomic` of files that lie in one directory, which is synced once for all of them. Each is atomic, the
    group is not: after a crash any of them may be old. Raises ValueError for several directories."""
    directory, *others = {path.parent for path in files}
    if others:
        raise ValueError(f"{directory} and {others[0]}: files that are written together lie in one directory")
    ensure_directory(directory)
    temporaries = {path: beside(path, "tmp") for path in files}
    try:
        for path, data in files.items():
            with storage(path, len(data)):
                _write_new(temporaries[path], data)
        for path, temporary in temporaries.items():
            with storage(path):
                rename(temporary, path)
        with storage(directory):
            fsync_directory(directory)
    except StorageError:
        for temporary in temporaries.values():
            with suppress(OSError):  # where nothing can be written, nothing can be removed
                temporary.unlink(missing_ok=True)  # a full disk needs the space
        raise


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write(fd, data, path)
        fsync(fd, path)
    finally:
        os.close(fd)


def append_lines(path: Path, lines: Sequence[str], *, synced: bool = True) -> int:
    """Append `lines` (without line ends) and return the file's new size in bytes. On an OSError nothing stays appended;
    a file whose last line is torn is refused, because the next line would be glued to it. With synced=False the lines
    survive a kill at once, but a power failure only after the next `sync` of the file."""
    if any("\n" in line for line in lines):
        raise ValueError(f"{path}: a line to append holds a line end")
    data = "".join(f"{line}\n" for line in lines).encode()
    ensure_directory(path.parent)
    with storage(path, len(data)):
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                raise OSError(errno.EIO, "the last line is torn: truncate the file to a row's end first")
            try:
                write(fd, data, path)
                if synced:
                    fsync(fd, path)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if is_new and synced:
            fsync_directory(path.parent)
    return size + len(data)


def sync(path: Path) -> None:
    """What `append_lines` left unsynced in `path` survives a power failure from here on. A missing file has nothing."""
    if not path.exists():
        return
    with storage(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            fsync(fd, path)
        finally:
            os.close(fd)
        fsync_directory(path.parent)


def require_length(path: Path, offset: int) -> None:
    """Raises CheckpointError where the log is shorter than `offset` bytes. A missing file has 0."""
    size = path.stat().st_size if path.exists() else 0
    if size < offset:
        raise CheckpointError(f"{path}: {size} bytes, but the checkpoint was taken at {offset}: rows are missing")


def truncate_to(path: Path, offset: int, orphans_dir: Path) -> None:
    """Cut the log `path` back to `offset` bytes, the end of a row. What lies beyond is first kept in `orphans_dir`.
    Raises CheckpointError where the file is shorter than `offset` or has no row end there."""
    require_length(path, offset)
    if not path.exists():
        return
    with storage(path), path.open("rb") as f:
        f.seek(max(offset - 1, 0))
        row_end = f.read(1) if offset else b"\n"
        beyond = f.read()
    if row_end != b"\n":
        raise CheckpointError(f"{path}: byte {offset} is not the end of a row, so the checkpoint is not of this file")
    if not beyond:
        return
    digest = hashlib.sha256(beyond).hexdigest()[:8]  # the same rows after a second crash get the same name
    write_atomic(orphans_dir / f"{path.stem}-{offset:010d}-{digest}{path.suffix}", beyond)
    with storage(path):
        fd = os.open(path, os.O_WRONLY)
        try:
            before("truncate", path)
            os.ftruncate(fd, offset)
            fsync(fd, path)
        finally:
            os.close(fd)


def set_aside(path: Path, orphans_dir: Path) -> Path:
    """Move a file or directory into `orphans_dir`, under a name that is free there; returns the new path."""
    ensure_directory(orphans_dir)
    target, number = orphans_dir / path.name, 0
    while target.exists():
        number += 1
        target = orphans_dir / f"{path.name}.{number}"
    with storage(target):
        rename(path, target)
        fsync_directory(orphans_dir)
        fsync_directory(path.parent)
    return target
