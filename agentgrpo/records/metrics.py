"""The run's numbers: `metrics.jsonl`, which equal runs repeat byte for byte, and the logs of clocks, which differ.

    metrics.jsonl   {"step":12,"advantages/std":0.98,"correctness":0.5,...}     one row per step, exactly once
    timings.jsonl   {"step":12,"throughput/tokens_per_s":812.5,...}             any number of rows per step
    profile.jsonl   {"step":12,"backward":0.9,"forward":0.6,...,"total":4.7}    one row per step, with run.profile=true

A row is compact JSON: `step` first (0-based), then the tags in alphabetical order. Floats are written as Python's repr,
which reads back to the same bits; integers stay integers. JSON has no NaN and no infinity: both are written as null, so
null means "not a finite number" and a missing tag means "not measured".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from agentgrpo.core.durable import append_lines, sync
from agentgrpo.core.errors import DataError
from agentgrpo.core.untrusted import read_json
from agentgrpo.records.seals import SEALS, prefix

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
PROFILE = "profile.jsonl"
CLOCKS = ("time/", "throughput/")
"""Prefixes of tags that depend on clocks."""
_CUT_BACK = "`agentgrpo resume` cuts the log back to its last checkpoint"


class MetricsLog:
    """Appends to the logs of a run directory; raises StorageError if it cannot. A row of metrics.jsonl is on the disk
    when the call returns. Rows of clocks survive a kill at once, but are put on the disk only by `logs`, for a
    checkpoint, because a resumed run drops younger rows."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._last_step: int | None = None

    def step(self, step: int, tags: Mapping[str, float]) -> None:
        """Append the row of one step. Steps only rise: raises ValueError for a step that is already recorded, and for a
        tag that depends on a clock (such tags go to `clock`)."""
        if clocks := sorted(tag for tag in tags if tag.startswith(CLOCKS)):
            raise ValueError(f"{clocks[0]} depends on a clock: record it with clock(), not in {METRICS}")
        if self._last_step is None:
            rows = read_metrics(self._run_dir / METRICS)
            self._last_step = rows[-1]["step"] if rows else -1
        if step <= self._last_step:
            raise DataError(
                f"step {step} cannot follow step {self._last_step} in {self._run_dir / METRICS}; {_CUT_BACK}"
            )
        append_lines(self._run_dir / METRICS, [_row(step, tags)])
        self._last_step = step

    def clock(self, step: int, tags: Mapping[str, float]) -> None:
        """Append a row of one step's seconds and rates, and of other numbers that do not repeat, as a judge's bill."""
        append_lines(self._run_dir / TIMINGS, [_row(step, tags)], synced=False)

    def profile(self, step: int, seconds: Mapping[str, float]) -> None:
        """Append a step's wall time: its `total`, and the stages that add up to it."""
        append_lines(self._run_dir / PROFILE, [_row(step, seconds)], synced=False)

    def logs(self) -> list[dict[str, Any]]:
        """The seals (see records.seals) of the logs that a checkpoint is tied to. Logs of clocks are not tied to it
        (see `clock_offset`), but are put on the disk, as the checkpoint's past."""
        for clocks in (TIMINGS, PROFILE):
            sync(self._run_dir / clocks)
        return [asdict(prefix(self._run_dir, name)) for name in (METRICS, SEALS)]


def _row(step: int, tags: Mapping[str, float]) -> str:
    row: dict[str, int | float | None] = {"step": step}
    for tag in sorted(tags):
        value = tags[tag]
        number = value if isinstance(value, int) else float(value)
        row[tag] = number if math.isfinite(number) else None
    if row["step"] != step:
        raise ValueError("a tag is called 'step'; that name is the row's own")
    return json.dumps(row, separators=(",", ":"))


def read_metrics(path: Path, *, torn: Literal["refused", "left out"] = "refused") -> list[dict[str, Any]]:
    """The rows of a log, in order; [] if the file does not exist. torn: how to treat an incomplete last row, such as a
    row that is being written. Raises DataError naming file, line and reason."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if torn == "left out" and lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    rows = [_parse(path, number, line) for number, line in enumerate(lines, start=1)]
    if path.name == METRICS:  # the only log with one row per step
        for number, (before, row) in enumerate(pairwise(rows), start=2):
            if row["step"] <= before["step"]:
                said = f"step {row['step']} follows step {before['step']}"
                raise DataError(f"{path}:{number}: {said}; {_CUT_BACK}")
    return rows


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        if not line.endswith(b"\n"):
            raise ValueError("the row is torn")
        row = read_json(line)
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or row["step"] < 0:
            raise ValueError("not an object with an integer 'step', 0 or more")
        if odd := [tag for tag, value in row.items() if value is not None and not _is_number(value)]:
            raise ValueError(f"{odd[0]} is no number")
        return row
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}:{number}: {e}; {_CUT_BACK}") from e


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def clock_offset(path: Path, step: int) -> int:
    """How many bytes of a log of clocks belong to steps before `step`: up to the first row of `step` or a later step,
    or the first unreadable row. (A checkpoint does not store this number, since its bytes would depend on clocks.)"""
    offset = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            if _parse(path, 0, line)["step"] >= step:
                break
        except DataError:
            break
        offset += len(line)
    return offset
