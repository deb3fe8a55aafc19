"""A run that is refused, or interrupted before it has begun, leaves its directory as it found it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from agentgrpo.durable import write_atomic
from agentgrpo.errors import ConfigError, DataError, StorageError
from agentgrpo.interrupts import is_of_interrupt
from agentgrpo.records.run_dir import CONFIG, EVALUATED

LOCK = "run.lock"
OURS = frozenset({CONFIG, EVALUATED, LOCK})
"""What a run writes before it knows whether it can begin."""


class Unbegun:
    """A context manager around the run, made before its directory is and entered once that is locked: where it is left
    by a refusal (ConfigError, DataError) or Ctrl-C and nothing but OURS has come or changed since, that goes again,
    with the directories that were made for it. What was there before stays, OURS as they were, and so does everything
    once there is more. is_ours: the directory has just been made for this run, though it is there already."""

    def __init__(self, run_dir: Path, *, is_ours: bool) -> None:
        self._run_dir = run_dir
        self._locks = LOCK not in _entries(run_dir)
        missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        self._folders = missing or ([run_dir] if is_ours and not _entries(run_dir) else [])

    def __enter__(self) -> Unbegun:
        self._before = _entries(self._run_dir)
        self._texts = {name: text for name in (CONFIG, EVALUATED) if (text := _text(self._run_dir / name)) is not None}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not (isinstance(error, ConfigError | DataError) or is_of_interrupt(error)):
            return
        with suppress(OSError, StorageError):  # what cannot be tidied is no reason to hide why the run was refused
            before, now = self._before, _entries(self._run_dir)
            if {name: s for name, s in before.items() if name not in OURS} != {
                name: s for name, s in now.items() if name not in OURS
            }:
                return
            for name, text in self._texts.items():
                if _text(self._run_dir / name) not in (None, text):
                    write_atomic(self._run_dir / name, text)
            for name in now.keys() - (before.keys() - ({LOCK} if self._locks else set())):
                (self._run_dir / name).unlink()
            for folder in self._folders:
                folder.rmdir()  # never one that has something in it


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _entries(folder: Path) -> dict[str, int]:
    """Name -> when it was last changed: for a folder, when something last came into it or went."""
    return {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()} if folder.is_dir() else {}
