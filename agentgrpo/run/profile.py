"""run.profile: which parts' calls the stage clock counts, and the table at the end.

Only a run that is profiled has its parts wrapped; what they compute is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

import torch

from agentgrpo.core.stages import Clock, Stage, StageClock
from agentgrpo.records.screen import Screen

CALLS: Mapping[str, tuple[Stage, str]] = {
    "engine": (Stage.GENERATION, "generate"),
    "retriever": (Stage.TOOLS, "search"),
    "reranker": (Stage.TOOLS, "rerank"),
    "fetcher": (Stage.TOOLS, "fetch"),
    "tool": (Stage.TOOLS, "call"),
    "reader": (Stage.TOOLS, "answer"),
    "validity": (Stage.TOOLS, "judge"),
}
"""Kind of part -> the stage of its calls, and the coroutine function that makes them."""
T = TypeVar("T")


class _Observed:
    """A part, one of whose coroutine functions is counted on the clock; all else of it is its own."""

    def __init__(self, part: Any, clock: Clock, stage: Stage, method: str) -> None:
        self._part, self._clock, self._stage, self._method = part, clock, stage, method

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return self._counted(found) if name == self._method else found

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._clock.call(self._stage):
                return await method(*args, **kwargs)

        return call


def observed(kind: str, part: T, clock: Clock) -> T:
    """`part` of `kind`, or each of a mapping of them, with its calls counted; None and other kinds as they are."""
    if kind not in CALLS or part is None:
        return part
    if isinstance(part, Mapping):
        return {name: observed(kind, one, clock) for name, one in part.items()}  # type: ignore[return-value]
    stage, method = CALLS[kind]
    return _Observed(part, clock, stage, method)  # type: ignore[return-value]


def stage_clock(device: str) -> StageClock:
    """A clock of a run that computes on `device`."""
    return StageClock(settle=torch.cuda.synchronize) if device.startswith("cuda") else StageClock()


def report_profile(screen: Screen, rows: Sequence[Mapping[str, float]]) -> None:
    """Print what the rows of profile.jsonl come to: mean seconds and share per stage, largest first, and how long a
    step takes. Nothing where there is no row."""
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
