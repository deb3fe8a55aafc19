"""The folders that weights are written into for servers: a new one each time, of which the two newest stay."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.core.durable import remove_directory, sweep_leftovers

KEPT = 2


class SyncFolders:
    """root/000001, root/000002, ... Only the first process of a run writes and prunes there."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def coming(self) -> Path:
        """The next one, which does not exist yet."""
        last = max((int(path.name) for path in self._all()), default=0)
        return self._root / f"{last + 1:06d}"

    def prune(self) -> None:
        """Raises StorageError."""
        sweep_leftovers(self._root)
        for path in self._all()[:-KEPT]:
            remove_directory(path)

    def _all(self) -> list[Path]:
        found = self._root.iterdir() if self._root.is_dir() else ()
        return sorted(path for path in found if path.name.isdecimal() and path.is_dir())
