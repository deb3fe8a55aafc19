"""Processes that a test has started and that still run."""

from __future__ import annotations

import psutil

foreign: set[psutil.Process] = set()
"""Those that ran before the test (conftest.foreign_processes)."""


def new_processes() -> list[psutil.Process]:
    """Children of this process, and theirs, that the test has brought."""
    return [process for process in psutil.Process().children(recursive=True) if process not in foreign]


def has_ended(process: psutil.Process) -> bool:
    """A zombie has: nobody has asked yet how it ended. So has one that goes while it is asked."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
