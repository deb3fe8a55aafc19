"""CPU seconds: how many the steps of a run have taken, and whether they reach its limit (run.max_cpu_s).

They are stored in timings.jsonl alone: no other file of two equal runs depends on them, unless they end a run.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentgrpo.config.settings import RunSettings
from agentgrpo.records.metrics import TIMINGS, read_metrics

CPU = "time/cpu"
"""Tag for a step's CPU seconds: its rollout, update and records. Evaluations and checkpoints between steps are not
counted."""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, including child processes that have ended."""
    return sum(os.times()[:4])


def trained_cpu_s(run_dir: Path) -> float:
    """Return the recorded CPU seconds of all steps of a run."""
    return sum(row.get(CPU) or 0.0 for row in read_metrics(run_dir / TIMINGS, torn="left out"))


def is_trained(run: RunSettings, step: int, cpu_s: float) -> bool:
    """Return whether a run is fully trained after `step` steps that took `cpu_s` CPU seconds."""
    return step >= run.max_steps or (run.max_cpu_s is not None and cpu_s >= run.max_cpu_s)
