"""A program that keeps swapping what names of a workspace stand for: `python swapper.py WORKSPACE OUTSIDE`.

d   a folder of the workspace <-> a link to the folder OUTSIDE
f   a file of the workspace   <-> a link to OUTSIDE/secret
h   a hard link to OUTSIDE/secret, now there, now not
p   a file of the workspace   <-> a pipe that nobody writes to
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path

_EXCHANGE = 2


def prepare(workspace: Path, outside: Path) -> None:
    outside.mkdir()
    (outside / "secret").write_text("SECRET")
    (workspace / "d").mkdir()
    (workspace / "d" / "secret").write_text("inside")
    (workspace / "d-link").symlink_to(outside)
    (workspace / "f").write_text("inside")
    (workspace / "f-link").symlink_to(outside / "secret")
    (workspace / "p").write_text("inside")
    os.mkfifo(workspace / "p-pipe")


def swap(workspace: Path, outside: Path) -> None:
    rename = ctypes.CDLL(None).renameat2

    def exchange(one: str, other: str) -> None:
        rename(-100, os.fsencode(workspace / one), -100, os.fsencode(workspace / other), _EXCHANGE)

    for n in itertools.count():
        exchange("d", "d-link")
        exchange("f", "f-link")
        exchange("p", "p-pipe")
        with suppress(FileExistsError):
            os.link(outside / "secret", workspace / "h")
        if n % 3:
            with suppress(FileNotFoundError):
                (workspace / "h").unlink()
        if n % 64 == 0:
            with suppress(OSError):  # written again just now
                repair(workspace, outside)


def repair(workspace: Path, outside: Path) -> None:
    """Whoever is tested may write over a name while it is a link or a pipe, which is then gone."""
    if not any((workspace / name).is_symlink() for name in ("f", "f-link")):
        (workspace / "f-link").unlink(missing_ok=True)
        (workspace / "f-link").symlink_to(outside / "secret")
    if not any((workspace / name).is_fifo() for name in ("p", "p-pipe")):
        (workspace / "p-pipe").unlink(missing_ok=True)
        os.mkfifo(workspace / "p-pipe")


if __name__ == "__main__":
    swap(Path(sys.argv[1]), Path(sys.argv[2]))
