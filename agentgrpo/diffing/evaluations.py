"""Two runs' end weights over the tasks that both were evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from agentgrpo.errors import DataError
from agentgrpo.recipes.bootstrap import paired_difference
from agentgrpo.recipes.recorded import MODES, Recorded, in_common, read_recorded
from agentgrpo.records.run_dir import RunDir


def evaluations(a: RunDir, b: RunDir) -> dict[str, Any]:
    """Mode -> {"n": tasks in common, "reason": why there is nothing to compare, or ""; "only": tasks of one run alone;
    "renamed": tasks of one id that ask something else; "failed"; "headline": names of metrics, the quality first;
    "metrics": {name: {"a","b","difference"}}; "kinds": the same of the quality, with "n"}.
    difference: [mean, low, high], paired by task."""
    return {mode: _mode(a, b, mode) for mode in MODES}


def _mode(a: RunDir, b: RunDir, mode: str) -> dict[str, Any]:
    try:
        before, now = (read_recorded(run, "end", mode) for run in (a, b))
    except DataError as e:
        return {"n": 0, "reason": str(e)}
    missing = [run.name for run, found in ((a, before), (b, now)) if found is None]
    if before is None or now is None:
        return {"n": 0, "reason": f"the end weights of {' and '.join(missing)} are not evaluated"}
    common, renamed = in_common(before, now)
    row = {
        "n": len(common),
        "reason": "" if common else "no task in common",
        "only": {"a": len(before.task_ids) - len(common), "b": len(now.task_ids) - len(common)},
        "renamed": renamed,
        "failed": {"a": before.num_failed, "b": now.num_failed},
    }
    return row | (_compared(before.only(common), now.only(common)) if common else {})


def _compared(a: Recorded, b: Recorded) -> dict[str, Any]:
    names = [name for name in a.columns if name in b.columns]
    metrics = {name: _difference(a.columns[name], b.columns[name]) for name in names}
    kinds = {}
    for kind in sorted({*a.kinds} - {""}):
        rows = [i for i, k in enumerate(a.kinds) if k == kind]
        sides = ([side.columns[side.quality][i] for i in rows] for side in (a, b))
        kinds[kind] = {"n": len(rows), **_difference(*sides)}
    return {"headline": [name for name in a.headline if name in metrics], "metrics": metrics, "kinds": kinds}


def _difference(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    return {"a": fmean(a), "b": fmean(b), "difference": list(paired_difference(a, b))}
