"""Compare ours with TRL on the same work: runs A B C A B C in fresh processes on one core, written to bench.json.

    python scripts/bench/compare.py --works tiny/latency-0 small/latency-0 --runs 3

A = ours, B = TRL with default settings, C = TRL with glibc told to keep big blocks (about 1.1 times as fast, more
memory). Running every work with the default repetitions takes about two hours on a quiet core: tiny 20 minutes, small
and vocab151k 50 each. Figures are compared only if both sides sampled and read the same number of tokens, within 0.5 %.

The peer's environment is .bench/peer, made by `make bench-peer` (pinned in scripts/bench/peer.txt).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import conditions
import results
from conditions import BENCH, TOP, fail
from works import Work, works

PEER = TOP / ".bench" / "peer" / "bin" / "python"
TOLERANCE = 0.005
"""Largest relative difference of the two sides' token counts."""
KEEP_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


@dataclass(frozen=True)
class Side:
    """A measured side: its interpreter, its script and its additional environment variables."""

    name: str
    python: Path
    script: str
    environment: Mapping[str, str]


OURS = Side("ours", Path(sys.executable), "ours.py", {})
PEERS = (Side("peer", PEER, "peer_trl.py", {}), Side("peer_malloc", PEER, "peer_trl.py", KEEP_BLOCKS))


def default_steps(work: Work) -> int:
    return 3 if work.name.startswith("tiny/") else 1


def default_runs(work: Work) -> int:
    """Waiting takes equally long every time, so one run is enough if waiting is most of the work."""
    return 1 if work.latency_s else 3 if work.name.startswith("tiny/") else 2


def measure(side: Side, work: Work, steps: int) -> dict[str, Any]:
    """Run one side once in a separate process and return its report; see measure.report."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [side.python, "-W", "ignore", BENCH / side.script, "--work", work.name, "--steps", str(steps)],
        env={**plain, **one_thread, **side.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        fail(f"{work.name}: {side.script} ended with {done.returncode}: {last}", 1)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def refuse_unequal_work(name: str, reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Exit with 1 if the sides sampled or read different numbers of tokens."""
    for count in ("sampled", "tokens"):
        totals = {side: sum(sum(r["work"][count]) for r in runs) for side, runs in reports.items()}
        if max(totals.values()) - min(totals.values()) > TOLERANCE * max(totals.values()):
            fail(f"{name}: the sides did not do the same work, {count}: {totals}; nothing is compared", 1)


def rows_of(
    name: str, reports: Mapping[str, Sequence[Mapping[str, Any]]], before: Sequence[results.Row]
) -> list[results.Row]:
    """Return the rows of a work from the reports by side. For a side that was not run, the runs are taken from
    `before`, if comparable; a figure without runs of one side gets no row."""
    stored = {row["figure"]: row for row in before if row["work"] == name}
    rows = []
    for figure in results.COMPARED:

        def runs(side: str, figure: str = figure) -> list[float]:
            if side in reports:
                return [report["figures"][figure] for report in reports[side]]
            return list(stored.get(figure, {}).get(side, ()))

        ours, peer, peer_malloc = runs("ours"), runs("peer"), runs("peer_malloc")
        if ours and peer and peer_malloc:
            rows.append(results.compared_row(name, figure, ours, peer, peer_malloc))
    return rows


def versions_of(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """The versions of both sides."""
    peer = {name: version for report in reports.get("peer", ()) for name, version in report["versions"].items()}
    return conditions.versions() | {f"peer {name}": version for name, version in peer.items()}


def compare(work: Work, sides: Sequence[Side], *, runs: int, steps: int, path: Path) -> None:
    """Run all sides on one work, then write its rows into the file."""
    reports: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for run in range(runs):
        for side in sides:
            report = measure(side, work, steps)
            reports[side.name].append(report)
            took = f"{report['figures']['step_wall_s']:.1f} s a step, {report['figures']['step_cpu_s']:.1f} s of CPU"
            print(f"{work.name} {run + 1}/{runs} {side.name}: {took}", file=sys.stderr)
    refuse_unequal_work(work.name, reports)
    versions = versions_of(reports)
    rows = rows_of(work.name, reports, results.comparable(results.read(path), conditions.machine(), versions))
    if not rows:
        cpu = median(r["figures"]["step_cpu_s"] for r in reports["ours"])
        print(f"{work.name}: no runs of the peer to compare with; ours took {cpu:.2f} s of CPU a step", file=sys.stderr)
        return
    results.write(rows, versions, path)


def arguments() -> argparse.Namespace:
    known = works()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=list(known), metavar="WORK", help=f"of: {', '.join(known)}")
    parser.add_argument("--runs", type=int, help="of each side; default 3 for tiny, 2 for the others, 1 with latency")
    parser.add_argument("--steps", type=int, help="measured per run, after one warm-up; default 3 for tiny, else 1")
    parser.add_argument("--only-ours", action="store_true", help="measure ours, against the peer's runs in bench.json")
    parser.add_argument("--quick", action="store_true", help="one run of one step: a look, not a figure to quote")
    args = parser.parse_args()
    conditions.require_works(args.works)
    conditions.require_positive(runs=args.runs, steps=args.steps)
    if not args.only_ours and not PEER.exists():
        fail(f"there is no peer in {PEER.parents[1]}; `make bench-peer` installs it, --only-ours does without")
    return args


def main() -> None:
    args = arguments()
    conditions.pin()
    sides = (OURS,) if args.only_ours else (OURS, *PEERS)
    for name in args.works:
        work = works()[name]
        runs = args.runs or (1 if args.quick else default_runs(work))
        steps = args.steps or (1 if args.quick else default_steps(work))
        compare(work, sides, runs=runs, steps=steps, path=results.BENCH_JSON)
    rows = [row for row in results.read(results.BENCH_JSON)["rows"] if row["work"] in args.works]
    if rows:
        results.show(results.table(rows))


if __name__ == "__main__":
    main()
