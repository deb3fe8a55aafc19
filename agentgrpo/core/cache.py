"""A cache of folders that are costly to make: each is made once and kept for later processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgrpo.core.durable import atomic_directory, ensure_directory, sweep_dead, sweep_leftovers, verify_directory
from agentgrpo.core.errors import CheckpointError

CACHE_VARIABLE = "AGENTGRPO_CACHE"


def default_cache() -> Path:
    """$AGENTGRPO_CACHE, or ~/.cache/agentgrpo."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "agentgrpo").expanduser()


def made_once(home: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder `home`/model, filled by `make` unless it is already complete. A process that asks while another
    one makes the folder waits for that process."""
    model = home / "model"
    with _alone(home):
        if not _is_whole(model):
            sweep_leftovers(home)
            for other in home.parent.iterdir():
                sweep_dead(other)
            with atomic_directory(model) as directory:
                make(directory)
    return model


def _is_whole(directory: Path) -> bool:
    try:
        return bool(verify_directory(directory))
    except CheckpointError:
        return False


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the lock of `home`, after waiting for other processes; the kernel frees the lock of a dead process."""
    ensure_directory(home)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
