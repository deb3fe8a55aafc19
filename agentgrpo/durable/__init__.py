"""The one module that writes what must survive a crash.

Every write goes to a temporary sibling (or to the end of a log), through a loop (a file system may take less than it
was given), is synced, and only then becomes visible by one rename, after which the parent directory is synced too.
(Log rows that only a checkpoint needs may wait for its `sync`: a kill takes none of them, a power failure may.) A
directory carries `manifest.json` with the size and SHA-256 of every file, written last: without it, or with one wrong
byte anywhere, the directory is not valid. A kill or a power failure at any instant leaves the old state or the new one,
plus leftovers that `sweep_leftovers` removes. An OSError leaves here as StorageError. POSIX only.

What this is not: a cure for disks that lie about syncing, or a transaction over several files. Whoever needs the latter
keeps the byte offsets of the logs in the directory (training.checkpoint does) and calls `truncate_to`.
"""

from agentgrpo.durable.directories import (
    MANIFEST,
    atomic_directory,
    remove_directory,
    sweep_leftovers,
    verify_directory,
)
from agentgrpo.durable.files import (
    append_lines,
    require_length,
    set_aside,
    sync,
    truncate_to,
    write_atomic,
    write_each_atomic,
)
from agentgrpo.durable.lock import RunLock
from agentgrpo.durable.operations import Hook, Operation, ensure_directory, injected, require_free_space, storage_error
from agentgrpo.durable.streams import atomic_stream

__all__ = [
    "MANIFEST",
    "Hook",
    "Operation",
    "RunLock",
    "append_lines",
    "atomic_directory",
    "atomic_stream",
    "ensure_directory",
    "injected",
    "remove_directory",
    "require_free_space",
    "require_length",
    "set_aside",
    "storage_error",
    "sweep_leftovers",
    "sync",
    "truncate_to",
    "verify_directory",
    "write_atomic",
    "write_each_atomic",
]
