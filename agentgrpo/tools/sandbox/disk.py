"""A file system with a limit on the number of files: each file costs a kilobyte of kernel memory, and bubblewrap's own
file systems limit bytes only.

Root opens the file system of a program that has not begun and sets the limit there (fspick of Linux 5.2). Another user
mounts a limited file system in a user namespace before bubblewrap starts; this starts two more programs at every call.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from enum import StrEnum

from agentgrpo.tools.sandbox.base import MIB, SandboxLimits

PLACE = "/sys"
"""Mount point of the disk: a folder that every machine has and no Python lives in."""
_MOUNT = f'"$1" -n -t tmpfs -o "$2" tmpfs {PLACE} || exit 1; shift 2; exec "$@"'
_FSPICK, _FSCONFIG = 433, 431
_HERE, _CLOEXEC = -100, 1
_SET_STRING, _RECONFIGURE = 1, 7
_LIBC = ctypes.CDLL(None, use_errno=True)


class Counting(StrEnum):
    PICKED = "picked"
    MOUNTED = "mounted"
    NONE = "none"


def ways() -> list[Counting]:
    """The methods to try, fastest first."""
    has_programs = shutil.which("unshare") is not None and shutil.which("mount") is not None
    picked = [Counting.PICKED] if os.geteuid() == 0 else []
    return [*picked, *([Counting.MOUNTED] if has_programs else []), Counting.NONE]


def mounting(limits: SandboxLimits) -> list[str]:
    """The start of a command line for an ordinary user; the program after it finds the disk at PLACE."""
    options = f"size={limits.disk_mb * MIB},nr_inodes={limits.max_files},mode=1777,nosuid,nodev"
    namespace = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount", "--"]
    return [*namespace, "/bin/sh", "-c", _MOUNT, "sh", shutil.which("mount") or "mount", options]


def count_files(path: str, most: int) -> None:
    """Limit the number of files of the file system mounted at `path`. Raises OSError."""
    picked = _call(_FSPICK, _HERE, os.fsencode(path), _CLOEXEC)
    try:
        _call(_FSCONFIG, picked, _SET_STRING, b"nr_inodes", str(most).encode("ascii"), 0)
        _call(_FSCONFIG, picked, _RECONFIGURE, None, None, 0)
    finally:
        os.close(picked)


def _call(number: int, *given: int | bytes | None) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
