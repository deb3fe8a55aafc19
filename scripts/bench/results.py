"""Read, write and print bench.json, the rows of all benches.

    {"machine": {...}, "versions": {...}, "rows": [
        {"work": "tiny/latency-0", "figure": "step_cpu_s", "ours": [4.1, 4.2], "peer": [8.5, 8.6],
         "peer_malloc": [7.9, 8.0], "ratio": 1.92}]}

ours, peer and peer_malloc hold a number per run; runs of equal index were made one right after the other. ratio
compares our median with the better of the peer's two. It is peer / ours for times (above 1 = ours is faster) but ours /
peer for memory (below 1 = ours needs less). A floor_fraction has no peer: its ratio is its own median.

python scripts/bench/results.py        prints the table
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import conditions
from conditions import TOP
from rich.console import Console
from rich.table import Table

from agentgrpo.core.durable import write_atomic

BENCH_JSON = TOP / "bench.json"
COMPARED = ("step_cpu_s", "step_wall_s", "rollout_cpu_s", "train_cpu_s", "peak_rss_mb")
"""Figures that both sides have."""
MEMORY = "peak_rss_mb"
FLOOR = "floor_fraction"
RATIO = (
    "ratio: peer / ours for times (higher is better), ours / peer for memory (lower is better), against the better of "
    "the peer's two medians; floor_fraction: the model's own forward / our rollout (1 = nothing to gain)"
)
Row = dict[str, Any]


def compared_row(
    work: str, figure: str, ours: Sequence[float], peer: Sequence[float], peer_malloc: Sequence[float]
) -> Row:
    """The row of a figure that both sides have. peer: default settings; peer_malloc: with the malloc environment."""
    better = min(peer, peer_malloc, key=median)
    ratio = median(ours) / median(better) if figure == MEMORY else median(better) / median(ours)
    return {
        "work": work,
        "figure": figure,
        "ours": list(ours),
        "peer": list(peer),
        "peer_malloc": list(peer_malloc),
        "ratio": ratio,
    }


def floor_row(work: str, fractions: Sequence[float]) -> Row:
    """fractions: floor / measured rollout, one per run."""
    return {"work": work, "figure": FLOOR, "ours": list(fractions), "peer": [], "ratio": median(fractions)}


def pair_ratios(row: Mapping[str, Any]) -> list[float]:
    """The ratio of each pair of runs, against the same peer as `ratio`."""
    if not row["peer"]:
        return []
    better = min(row["peer"], row["peer_malloc"], key=median)
    pairs = list(zip(row["ours"], better, strict=False))
    return [a / b if row["figure"] == MEMORY else b / a for a, b in pairs]


def read(path: Path) -> dict[str, Any]:
    """Return the file's content; without rows if there is no file."""
    empty: dict[str, Any] = {"machine": {}, "versions": {}, "rows": []}
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty


def comparable(before: Mapping[str, Any], machine: Mapping[str, Any], versions: Mapping[str, str]) -> list[Row]:
    """The rows of `before` that were measured on this machine with these versions; other rows are not comparable."""
    known = before["versions"]
    fits = before["machine"] == machine and all(known.get(name, v) == v for name, v in versions.items())
    return list(before["rows"]) if fits else []


def merged(
    before: Mapping[str, Any], machine: Mapping[str, Any], versions: Mapping[str, str], rows: Sequence[Row]
) -> dict[str, Any]:
    """Replace the rows with the same work and figure by `rows`; keep other rows if they are comparable."""
    old = comparable(before, machine, versions)
    new = {(row["work"], row["figure"]) for row in rows}
    kept = [row for row in old if (row["work"], row["figure"]) not in new]
    return {
        "machine": dict(machine),
        "versions": {**(before["versions"] if old else {}), **versions},
        "rows": sorted([*kept, *rows], key=lambda row: (row["work"], row["figure"])),
    }


def write(rows: Sequence[Row], versions: Mapping[str, str], path: Path) -> None:
    """Write `rows` into the file; a kill at any time leaves the old or the complete new file."""
    before, here = read(path), conditions.machine()
    if before["rows"] and not comparable(before, here, versions):
        print(f"{path.name}: its rows were of another machine or of other versions and are dropped", file=sys.stderr)
    write_atomic(path, (json.dumps(merged(before, here, versions, rows), indent=1) + "\n").encode())


def spread(runs: Sequence[float]) -> str:
    """median [least - largest]"""
    if not runs:
        return "-"
    digits = 0 if median(runs) >= 100 else 2
    return f"{median(runs):,.{digits}f} [{min(runs):,.{digits}f} - {max(runs):,.{digits}f}]"


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("work", "figure", "ours", "peer", "peer, malloc", "ratio", "ratio of pairs")
    shown = Table(*columns, title="median [range]", caption=RATIO)
    for row in rows:
        shown.add_row(
            row["work"],
            row["figure"],
            spread(row["ours"]),
            spread(row["peer"]),
            spread(row.get("peer_malloc", ())),
            f"{row['ratio']:.2f}",
            spread(pair_ratios(row)),
        )
    return shown


def show(what: Table | str) -> None:
    """Print on stdout, wide enough for a table even without a terminal."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)
    console.print(what)


if __name__ == "__main__":
    show(table(read(BENCH_JSON)["rows"]))
