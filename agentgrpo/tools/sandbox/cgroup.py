"""A control group for each program, if one can be created: one limit on all its processes, files and buffers.

This needs cgroup v2 and a divisible group at or above this process: root has one in most sessions, another user in a
delegated session (`systemd-run --user --scope -p Delegate=yes agentgrpo train ...`). New groups are never created
outside a group with a memory bound, so that bound keeps counting their memory.

Reference: Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from agentgrpo.core.errors import ToolError

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NEEDED = ("memory", "pids")
_PREFIX = "agentgrpo-"
_NUMBERS = itertools.count()
_PATIENCE_S = 1.0
"""Seconds that the last processes of a group may take to end at the end of the run."""


class NoGroups(Exception):
    """No control group can be created; the text says why."""


class Groups:
    """Control groups with these settings (file -> content), one for each program."""

    def __init__(self, settings: Mapping[str, str], *, root: Path = ROOT, own: Path = OWN) -> None:
        """Tests one group, and removes the groups of killed drivers. Raises NoGroups."""
        self._settings = dict(settings)
        self._left: list[Path] = []
        self.parent = _find(root, own, self._try)
        _sweep(self.parent)

    def make(self) -> Path:
        """Create an empty group. Raises ToolError."""
        try:
            return self._make(self.parent)
        except OSError as e:
            raise ToolError(f"sandbox: no control group can be made in {self.parent}: {e.strerror}") from e

    @staticmethod
    def enter(group: Path, pid: int) -> None:
        """Move the process into the group. Raises OSError."""
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def remove(self, group: Path) -> None:
        """Remove the group; if its last processes are still ending, it is removed later."""
        self._left = [each for each in (*self._left, group) if not _removed(each)]

    def close(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while self._left and time.monotonic() < until:
            self._left = [each for each in self._left if not _removed(each)]
            time.sleep(0.01 if self._left else 0)

    def _make(self, parent: Path) -> Path:
        group = parent / f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}"
        group.mkdir()
        try:
            for name, content in self._settings.items():
                (group / name).write_text(content, encoding="ascii")
            with suppress(OSError):  # the kernel does not count swap
                (group / "memory.swap.max").write_text("0", encoding="ascii")
        except OSError:
            _removed(group)
            raise
        return group

    def _try(self, parent: Path) -> bool:
        """Whether a process of this user can be moved into a group there."""
        try:
            group = self._make(parent)
        except OSError:
            return False
        waiting = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            self.enter(group, waiting.pid)
        except OSError:
            return False
        finally:
            waiting.communicate()
            self.remove(group)
        return True


def _find(root: Path, own: Path, works: Callable[[Path], bool]) -> Path:
    """Return the nearest group at or above this process that can be divided."""
    if not (root / "cgroup.controllers").is_file():
        raise NoGroups(f"there is no cgroup v2 at {root}")
    lines = own.read_text(encoding="utf-8").splitlines()
    [path] = [line.removeprefix("0::") for line in lines if line.startswith("0::")] or [""]
    folder = root / path.lstrip("/")
    if ".." in folder.parts or not folder.is_dir():
        raise NoGroups("the control group of this process cannot be seen from here")
    while True:
        if _can_divide(folder) and works(folder):
            return folder
        if folder == root:
            hint = "start it with systemd-run --user --scope -p Delegate=yes" if os.geteuid() else "none is delegated"
            raise NoGroups(f"no control group above this process can be divided; {hint}")
        if _is_bounded(folder):
            raise NoGroups(f"{folder} has a memory.max of its own, and cannot be divided")
        folder = folder.parent


def _can_divide(folder: Path) -> bool:
    enabled = folder / "cgroup.subtree_control"
    try:
        if set(_NEEDED) <= set(enabled.read_text(encoding="ascii").split()):
            return True
        if set(_NEEDED) <= set((folder / "cgroup.controllers").read_text(encoding="ascii").split()):
            enabled.write_text(" ".join(f"+{name}" for name in _NEEDED), encoding="ascii")
            return True
        return False
    except OSError:  # it belongs to another user, or holds processes itself
        return False


def _is_bounded(folder: Path) -> bool:
    try:
        return (folder / "memory.max").read_text(encoding="ascii").strip() != "max"
    except OSError:
        return False


def _sweep(parent: Path) -> None:
    """Remove the groups of dead drivers. The kernel refuses to remove a group that still holds processes."""
    for group in parent.glob(f"{_PREFIX}*-*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _removed(group)


def _removed(group: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            group.rmdir()
        except OSError:
            return False
    return True
