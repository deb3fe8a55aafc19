"""Folders that are costly to make, made once and kept, whoever asks for them next."""

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
    """The folder `home`/model: the whole one that is there, or what `make` now writes into it. Whoever comes while
    another process makes it waits for that one."""
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
    """Waits until no other process is at work in `home`; the kernel frees the lock of one that died."""
    ensure_directory(home)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
