"""CPU seconds: what the steps of a run have taken of them, and whether that is all that they may (run.max_cpu_s).

They are clocks, and stand in timings.jsonl alone: no other file of two equal runs depends on them, unless they end one.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentgrpo.config.settings import RunSettings
from agentgrpo.records.metrics import TIMINGS, read_metrics

CPU = "time/cpu"
"""Tag of a step's: its rollout, its update and its records. What comes between steps, evaluations and checkpoints, is
nobody's."""


def cpu_seconds() -> float:
    """Of this process so far, and of the programs that it has started and that have ended."""
    return sum(os.times()[:4])


def trained_cpu_s(run_dir: Path) -> float:
    """What the steps of a run have taken, as far as they were recorded."""
    return sum(row.get(CPU) or 0.0 for row in read_metrics(run_dir / TIMINGS, torn="left out"))


def is_trained(run: RunSettings, step: int, cpu_s: float) -> bool:
    """Whether a run has trained enough after `step` steps that took `cpu_s`."""
    return step >= run.max_steps or (run.max_cpu_s is not None and cpu_s >= run.max_cpu_s)
