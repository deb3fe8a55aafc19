"""run.profile: the clock of a profiled run, and the table at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from agentgrpo.core.stages import Stage, StageClock
from agentgrpo.records.screen import Screen


def stage_clock(device: str) -> StageClock:
    """Return a clock for a run that computes on `device`."""
    return StageClock(settle=torch.cuda.synchronize) if device.startswith("cuda") else StageClock()


def report_profile(screen: Screen, rows: Sequence[Mapping[str, float]]) -> None:
    """Print a summary of profile.jsonl: mean seconds and share of each stage, largest first, and the step time. Prints
    nothing if there are no rows."""
    if not rows:
        return
    totals = sorted(row["total"] for row in rows)
    mean = fmean(totals)
    spent = {stage.value: fmean(row[stage.value] for row in rows) for stage in Stage}
    screen.table(
        f"time of a step, mean of {len(rows)}",
        ["stage", "seconds", "share"],
        [[name, f"{s:.4f}", f"{s / mean:.1%}"] for name, s in sorted(spent.items(), key=lambda x: -x[1])]
        + [["total", f"{mean:.4f}", "100.0%"]],
    )
    p95 = totals[math.ceil(0.95 * len(totals)) - 1]
    screen.line(f"step time: mean {mean:.3f} s, p95 {p95:.3f} s, longest {totals[-1]:.3f} s")
