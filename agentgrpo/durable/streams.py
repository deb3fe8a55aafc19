"""A file too large for memory, written piece by piece and yet whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgrpo.durable.operations import beside, ensure_directory, fsync, fsync_directory, rename, storage, write


@contextmanager
def atomic_stream(path: Path) -> Iterator[Callable[[bytes], None]]:
    """What the yielded function is given becomes `path` on leaving the block, replacing an older one. After an error
    (an OSError leaves as StorageError) nothing of it is left."""
    ensure_directory(path.parent)
    temporary = beside(path, "tmp")
    with storage(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                yield lambda data: write(fd, data, temporary)
                fsync(fd, temporary)
            finally:
                os.close(fd)
            rename(temporary, path)
            fsync_directory(path.parent)
        except (Exception, KeyboardInterrupt):
            temporary.unlink(missing_ok=True)
            raise
