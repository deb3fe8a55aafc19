"""How many threads compute, and how they wait for one another: what OpenMP must be told for a machine that has other
work too."""

from __future__ import annotations

import os

COUNT, WAIT = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
AT_MOST = 2
"""More help no model that fits a CPU."""


def wait_asleep() -> None:
    """Have threads that wait for one another sleep. Left to itself, GNU's OpenMP has them spin: where another program
    holds a core, one spins for the whole time slice of the other, at each of some hundred products a token. It reads
    this as it is loaded, with torch. What the user has set stays."""
    os.environ.setdefault(WAIT, "PASSIVE")


def usual_threads() -> int:
    """OMP_NUM_THREADS where it is a number, as torch has it; else one per CPU that this process may use, AT_MOST."""
    said = os.environ.get(COUNT, "")
    if said.isdecimal() and int(said):
        return int(said)
    return min(AT_MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
