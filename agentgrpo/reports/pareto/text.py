"""Print the report on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.records.lines import counted, one_line, signed
from agentgrpo.records.screen import Screen
from agentgrpo.reports.pareto.page import standing
from agentgrpo.reports.pareto.prices import sentence


def show(screen: Screen, found: Mapping[str, Any], page: str) -> None:
    for family in found["families"]:
        _family(screen, family)
    for row in found["skipped"]:
        screen.text(f"note: left out {one_line(row['name'])}: {one_line(row['reason'])}")
    screen.text(f"page: {page}")


def _family(screen: Screen, family: Mapping[str, Any]) -> None:
    screen.text(one_line(f"{family['task']}, environment {family['agent']}, {counted(family['n'], 'task')}"))
    screen.text(one_line(f"varied: {', '.join(family['varied']) or 'nothing but the seed'}"))
    for note in family["notes"]:
        screen.text(f"note: {one_line(note)}")
    for mode, points in family["modes"].items():
        if points:
            columns = ["policy", family["quality"], "cost", "runs", "Pareto"]
            screen.table(f"correctness against cost, {mode}", columns, [_row(point) for point in points])
    for sweep in family["sweeps"]:
        for mode, of_mode in sweep["modes"].items():
            for statement in of_mode["statements"]:
                if statement["own"]:
                    screen.text(one_line(f"{mode}: {sentence(statement, sweep)}"))
    for mode, rows in family["counterfactuals"].items():
        if rows:
            columns = ["policy", "counterfactual", "as it is", "with it", "change", "95 % interval"]
            cells = [_counterfactual(row) for row in rows]
            screen.table(f"{family['quality']} without the help of retrieval, {mode}", columns, cells)


def _row(point: Mapping[str, Any]) -> list[str]:
    figures = [_interval(point["quality"]), _interval(point["cost"])]
    return [one_line(point["label"]), *figures, str(len(point["runs"])), one_line(standing(point))]


def _counterfactual(row: Mapping[str, Any]) -> list[str]:
    mean, low, high = row["change"]
    what = [one_line(row["setting"]), row["counterfactual"], f"{row['with']:.3f}", f"{row['without']:.3f}"]
    return [*what, signed(mean), f"[{low:+.3f}, {high:+.3f}]"]


def _interval(found: Sequence[float | None]) -> str:
    mean, low, high = found
    if mean is None:
        return "–"
    return f"{mean:.3f}" if low is None or high is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
