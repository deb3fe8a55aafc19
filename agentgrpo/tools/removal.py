"""A directory that a policy's programs have filled, removed whatever they did in it.

`shutil.rmtree` fails on directories that cannot be read, and calls itself once a level, so that a program of one line
could leave its workspace behind or the trainer without stack and descriptors. Only for directories that no program is
at work in any more.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove `path` and all in it, links themselves and not what they point to, with one descriptor and names of one
    level, however deep it is. Raises OSError where something remains; nothing happens where `path` does not exist."""
    if not os.path.lexists(path):
        return
    _open_up(path.lstat().st_mode, path, None)
    here, names = os.open(path, _DIRECTORY), list[str]()
    try:
        while True:
            inner = _remove_files(here)
            if inner is not None:
                here = _step(here, inner)
                names.append(inner)
            elif names:
                here = _step(here, "..")
                os.rmdir(names.pop(), dir_fd=here)
            else:
                break
    finally:
        os.close(here)
    path.rmdir()


def _remove_files(directory: int) -> str | None:
    """Remove the entries of `directory` up to the first directory in it, which is made accessible and named."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_up(entry.stat(follow_symlinks=False).st_mode, entry.name, directory)
                return entry.name
            os.unlink(entry.name, dir_fd=directory)
    return None


def _step(directory: int, name: str) -> int:
    """A descriptor of the directory `name` in `directory`, in the place of this one."""
    found = os.open(name, _DIRECTORY, dir_fd=directory)
    os.close(directory)
    return found


def _open_up(mode: int, name: Path | str, directory: int | None) -> None:
    """Its owner may do anything in the directory."""
    if stat.S_ISDIR(mode) and stat.S_IMODE(mode) & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=directory)
