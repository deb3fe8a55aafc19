"""Processes that a test has started and that still run."""

from __future__ import annotations

from pathlib import Path

import psutil

foreign: set[psutil.Process] = set()
"""Those that ran before the test (conftest.foreign_processes)."""


def new_processes() -> list[psutil.Process]:
    """Children of this process, and theirs, that the test has brought."""
    return [process for process in psutil.Process().children(recursive=True) if process not in foreign]


def alive(pid: int) -> bool:
    """A zombie is not: nobody has asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
