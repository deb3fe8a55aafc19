"""OpenMP settings for a machine with other work: the number of compute threads, and how they wait."""

from __future__ import annotations

import os

COUNT, WAIT = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
AT_MOST = 2
"""More threads speed up no model that fits a CPU."""


def wait_asleep() -> None:
    """Let OpenMP threads sleep while they wait for one another. By default GNU's OpenMP spins: if another program holds
    a core, a thread spins for the whole time slice of that program, at each of some hundred products per token. OpenMP
    reads this variable when it is loaded with torch. A value that the user has set is kept."""
    os.environ.setdefault(WAIT, "PASSIVE")


def usual_threads() -> int:
    """Return OMP_NUM_THREADS if it is a number, like torch; else one per CPU of this process, at most AT_MOST."""
    said = os.environ.get(COUNT, "")
    if said.isdecimal() and int(said):
        return int(said)
    return min(AT_MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
