"""The folders to which weights are written for servers: a new one each time; the two newest are kept."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.core.durable import remove_directory, sweep_leftovers

KEPT = 2


class SyncFolders:
    """root/000001, root/000002, ... Only the first process of a run writes and prunes there."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def coming(self) -> Path:
        """Return the next folder, which does not exist yet."""
        last = max((int(path.name) for path in self._all()), default=0)
        return self._root / f"{last + 1:06d}"

    def prune(self) -> None:
        """Remove all but the newest folders. Raises StorageError."""
        sweep_leftovers(self._root)
        for path in self._all()[:-KEPT]:
            remove_directory(path)

    def _all(self) -> list[Path]:
        found = self._root.iterdir() if self._root.is_dir() else ()
        return sorted(path for path in found if path.name.isdecimal() and path.is_dir())
