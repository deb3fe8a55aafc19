"""The conditions of a measurement (machine, versions, one core), and the errors of a bench that cannot run."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from works import works

BENCH = Path(__file__).resolve().parent
TOP = BENCH.parents[1]


def fail(message: str, code: int = 2) -> NoReturn:
    """Print one line on stderr and exit. code 2: the request is impossible; 1: the bench failed."""
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(code)


def require_works(names: Sequence[str]) -> None:
    known = works()
    if unknown := [name for name in names if name not in known]:
        fail(f"work {unknown[0]!r} was given; known are {', '.join(known)}")


def require_positive(**given: int | None) -> None:
    """A value of None stands for the default."""
    for name, value in given.items():
        if value is not None and value < 1:
            fail(f"--{name} {value} was given; 1 or more is allowed")


def pin() -> None:
    """Keep this process, and so every process that it starts, on one core if the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    else:
        print("bench: this system cannot pin a process to a core; figures will be noisier", file=sys.stderr)


def machine() -> dict[str, Any]:
    """The machine's properties on which the figures depend."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """The versions of our side, and a hash of the works' definition."""
    definition = b"".join((BENCH / name).read_bytes() for name in ("works.py", "workload.py"))
    return {
        "python": platform.python_version(),
        "workload": hashlib.sha256(definition).hexdigest()[:12],
        **{name: version(name) for name in ("agentgrpo", "transformers", "torch")},
    }
