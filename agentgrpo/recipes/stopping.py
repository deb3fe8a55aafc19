"""A run that ends before its end leaves word of why, for those who look at it later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentgrpo.errors import ConfigError, DataError, StorageError
from agentgrpo.recipes.parts import Progress
from agentgrpo.records.metrics import METRICS
from agentgrpo.records.stopped import forget_stop, write_stop
from agentgrpo.training.world import World


@contextmanager
def noting_stop(
    run_dir: Path, world: World, progress: Progress | None = None, max_steps: int | None = None
) -> Iterator[None]:
    """Around the work: what there was of an earlier stop goes, and an error that ends the work is written down by the
    first process. Not one that refuses a run which has not begun: that leaves nothing behind (recipes.unbegun).
    progress: None = an evaluation."""
    if world.rank:
        yield
        return
    forget_stop(run_dir)
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConfigError | DataError) or (run_dir / METRICS).exists():
            with suppress(OSError, StorageError):  # a full disk, say: it must not hide why the run ends
                write_stop(run_dir, error, step=None if progress is None else progress.step, max_steps=max_steps)
        raise
