"""Isolation of an untrusted program: its own user, file system, network, process table and host name.

    (root: bwrap --opens the way to shown paths--> setpriv: no longer root) --> bwrap: namespaces, seccomp --> program

The python tool, hidden tests and the commands of environment=program share this isolation. They differ in the visible
paths, the allowed system calls, and whether the memory of a process is counted by addresses. Files are shown read-only.
The sandbox consists of namespaces on a shared kernel, so a vulnerability of the kernel itself is out of its scope.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgrpo.core.errors import ConfigError
from agentgrpo.tools.sandbox.base import MIB, SandboxLimits
from agentgrpo.tools.sandbox.bounds import settings_of
from agentgrpo.tools.sandbox.cgroup import Groups, NoGroups
from agentgrpo.tools.sandbox.disk import PLACE, Counting, count_files, mounting, ways

NOBODY = 65534
"""The user of programs whose driver is root, and the user that every program sees itself as."""
NEEDS = (
    "It needs bubblewrap 0.8 or newer, and user namespaces open to this user (user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp "
    "profile)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The paths of this machine that a program sees, all absolute."""

    shown: tuple[str, ...]
    """Files and folders, read-only, at the same place."""
    covered: tuple[str, ...] = ()
    """Files and folders within `shown` that appear empty."""
    links: tuple[tuple[str, str], ...] = ()
    """(target, path) of links that lead to shown paths."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Path of a shown file -> the file that appears there instead."""

    @property
    def top(self) -> set[str]:
        """The names in the root folder, except those that every sandbox has."""
        return {path.split("/")[1] for path in (*self.shown, *(path for _, path in self.links))}

    @property
    def folders_in_tmp(self) -> list[str]:
        """Folders in /tmp that hold shown paths; they are read-only, although /tmp is writable."""
        inner = {p.parts[2] for p in map(Path, self.shown) if p.parts[1] == "tmp" and len(p.parts) > 3}
        return sorted(f"/tmp/{name}" for name in inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The working directory of a program."""

    path: str
    is_bound: bool = False
    """True: a folder of this machine, which the program fills. False: created in memory and gone with the program."""

    @property
    def arguments(self) -> list[str]:
        made = ("--bind", self.path, self.path) if self.is_bound else ("--dir", self.path)
        return [*made, "--chdir", self.path]


class Isolation:
    """Builds the start of a command line, and the control group of the process that it starts."""

    def __init__(
        self,
        view: View,
        limits: SandboxLimits,
        *,
        flags: Sequence[str] = (),
        shares_memory: bool = False,
        is_grouped: bool = True,
        missing: str,
    ) -> None:
        """flags: further arguments for bubblewrap. shares_memory: provide /run and /dev/shm, in memory. is_grouped: use
        a control group for each program, if one can be created. missing: text of the error if a system program is not
        installed, with {name} and {package}. Raises ConfigError with this text."""
        self._bwrap = _program("bwrap", "bubblewrap", missing)
        self.is_root = os.geteuid() == 0
        setpriv = [_program("setpriv", "util-linux", missing)] if self.is_root else []
        drop = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        self._drop = [*setpriv, *drop] if self.is_root else []
        self._view, self._limits, self._flags, self._shares_memory = view, limits, flags, shares_memory
        self._groups, self.no_groups = _groups(limits) if is_grouped else (None, "none was asked for")
        self._counting = Counting.NONE

    def settle(self, test: Callable[[], str | None]) -> str | None:
        """Choose the first way of counting files for which `test` finds no fault. Return the last fault if all fail."""
        fault: str | None = None
        for self._counting in ways():
            fault = test()
            if fault is None:
                break
        return fault

    @property
    def is_counted(self) -> bool:
        """Whether the number of files in /tmp is bounded."""
        return self._counting is not Counting.NONE

    @property
    def has_groups(self) -> bool:
        return self._groups is not None

    def argv(self, home: Home, seccomp: int) -> list[str]:
        """The start of a program's command line. seccomp: an inherited descriptor from which bubblewrap reads the
        system call filter."""
        is_mounted = self._counting is Counting.MOUNTED
        in_memory = ("--size", str(self._limits.disk_mb * MIB), "--tmpfs")
        shared = (*in_memory, "/dev/shm", "--dir", "/run") if self._shares_memory else ()
        return [
            *(self._way_to(home) if self.is_root else ()),
            *self._drop,
            *(mounting(self._limits) if is_mounted else ()),
            *(self._bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
            *("--hostname", "sandbox", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY)),
            *self._flags,
            *(("--bind", PLACE, "/tmp") if is_mounted else (*in_memory, "/tmp")),
            *(word for folder in self._view.folders_in_tmp for word in ("--tmpfs", folder)),
            *(word for path in self._view.shown for word in ("--ro-bind", path, path)),
            *(word for path in self._view.covered for word in _cover(path)),
            *(word for path, source in self._view.replaced.items() for word in ("--ro-bind", source, path)),
            *(word for target, path in self._view.links for word in ("--symlink", target, path)),
            *("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", *shared, "--remount-ro", "/dev"),
            *home.arguments,
            *(word for folder in self._view.folders_in_tmp for word in ("--remount-ro", folder)),
            *("--remount-ro", "/", "--seccomp", str(seccomp), "--"),
        ]

    def new_group(self) -> Path | None:
        """Create a control group, if this machine has them. Raises ToolError."""
        return self._groups.make() if self._groups else None

    def admit(self, group: Path | None, pid: int) -> None:
        """Bound a process before its work begins, and all its future children. Raises OSError, also if the process runs
        as root."""
        if _user_of(pid) == 0:
            raise PermissionError(errno.EPERM, "it is root")
        if self._groups and group:
            self._groups.enter(group, pid)
        if self._counting is Counting.PICKED:
            count_files(f"/proc/{pid}/root/tmp", self._limits.max_files)

    def remove_group(self, group: Path | None) -> None:
        if self._groups and group:
            self._groups.remove(group)

    def close(self) -> None:
        if self._groups:
            self._groups.close()

    def _way_to(self, home: Home) -> list[str]:
        """Arguments by which root makes paths reachable that lie in folders closed to the programs' user, such as
        /root; these folders appear empty except for the paths."""
        writable = [home.path] if home.is_bound else []
        wanted = [*self._view.shown, *self._view.replaced.values(), *writable]
        paths = dict.fromkeys(name for path in wanted for name in (path, os.path.realpath(path)))
        gates = {path: gate for path in paths if (gate := _gate(Path(path))) is not None}
        if not gates:
            return []
        folders = {str(p) for path, gate in gates.items() for p in Path(path).parents if p.is_relative_to(gate)}
        made = [word for path in sorted(folders - {*gates.values()}) for word in ("--perms", "0755", "--dir", path)]
        bound = [w for p in gates for w in ("--bind" if p in writable else "--ro-bind", p, p)]
        emptied = [word for gate in sorted({*gates.values()}) for word in ("--tmpfs", gate)]
        return [self._bwrap, "--dev-bind", "/", "/", "--die-with-parent", *emptied, *made, *bound, "--"]


def _user_of(pid: int) -> int:
    """The user of a process in this machine's terms, whatever user it sees itself as."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Uid:")))


def _gate(path: Path) -> str | None:
    """The outermost folder above `path` that other users may not enter."""
    return next((str(p) for p in reversed(path.parents) if not p.stat().st_mode & stat.S_IXOTH), None)


def _cover(path: str) -> Iterator[str]:
    yield from ("--tmpfs", path, "--remount-ro", path) if Path(path).is_dir() else ("--ro-bind", os.devnull, path)


def _groups(limits: SandboxLimits) -> tuple[Groups | None, str]:
    """Return the control groups, or None and the reason why there are none."""
    try:
        return Groups(settings_of(limits)), ""
    except NoGroups as e:
        return None, str(e)


def _program(name: str, package: str, missing: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(missing.format(name=name, package=package))
    return path
