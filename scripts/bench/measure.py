"""Measurements of a step, equal for both sides, and their report: one JSON line on stdout."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

Now = Callable[[], float]
"""A clock in seconds."""


@dataclass
class Stopwatch:
    """Seconds of wall clock and of this process's CPU time by stage, one entry per step."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - wall, time.process_time() - cpu)

    def add(self, name: str, wall: float, cpu: float) -> None:
        self.wall.setdefault(name, []).append(wall)
        self.cpu.setdefault(name, []).append(cpu)

    def figures(self) -> dict[str, float]:
        """Medians over the steps, without the first, which is warm-up. Training is the part of a step that is not
        rollout.
        """
        step, rollout = self.wall["step"][1:], self.wall["rollout"][1:]
        step_cpu, rollout_cpu = self.cpu["step"][1:], self.cpu["rollout"][1:]
        return {
            "step_wall_s": median(step),
            "step_cpu_s": median(step_cpu),
            "rollout_wall_s": median(rollout),
            "rollout_cpu_s": median(rollout_cpu),
            "train_cpu_s": median(a - b for a, b in zip(step_cpu, rollout_cpu, strict=True)),
            "peak_rss_mb": peak_rss_mb(),
        }


def peak_rss_mb() -> float:
    """Peak memory of this process. On Linux, getrusage also counts the memory of the parent before exec; /proc does
    not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@contextmanager
def only_the_report_on_stdout() -> Iterator[int]:
    """Redirect everything printed inside to stderr; yield the descriptor of the real stdout."""
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        yield real
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)


def report(out: int, figures: dict[str, float], work: dict[str, Any], packages: tuple[str, ...]) -> None:
    """figures: medians by name. work: counts of the work done per step, which the other side must match."""
    versions = {name: version(name) for name in packages}
    os.write(out, (json.dumps({"figures": figures, "work": work, "versions": versions}) + "\n").encode())
