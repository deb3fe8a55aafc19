"""A run that is refused leaves its directory as it found it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from agentgrpo.errors import ConfigError, DataError
from agentgrpo.records.run_dir import CONFIG, EVALUATED

LOCK = "run.lock"
OURS = frozenset({CONFIG, EVALUATED, LOCK})
"""What a run writes before it knows whether it can begin."""


class Unbegun:
    """A context manager around the run, made before its directory is: where it is left by a refusal (ConfigError,
    DataError) and nothing but OURS has come since, that goes again, with the directories that were made for it. What
    was there before stays, and so does everything once there is more. is_ours: the directory has just been made for
    this run, though it is there already."""

    def __init__(self, run_dir: Path, *, is_ours: bool) -> None:
        self._run_dir = run_dir
        self._before = _entries(run_dir)
        missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        self._folders = missing or ([run_dir] if is_ours and not self._before else [])

    def __enter__(self) -> Unbegun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        came = _entries(self._run_dir) - self._before
        if not isinstance(error, ConfigError | DataError) or not came <= OURS:
            return
        with suppress(OSError):  # a directory that cannot be tidied is no reason to hide why the run was refused
            for name in came:
                (self._run_dir / name).unlink()
            for folder in self._folders:
                folder.rmdir()  # never one that has something in it


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
