"""Measure the time and memory of `agentgrpo view` and the size of its page, for runs of any length.

    python scripts/bench/view.py --run runs/x [--episodes 2000 100000] [--keep DIR]

The runs are simulated: they repeat the recorded groups of a real run, each time as new tasks and steps. Their training
results mean nothing, but their lines are as long and as varied as real ones. A separate process shows each run, with
and without recorded tokens: seconds of wall clock and CPU, peak resident memory, bytes of the page. Prints one JSON
line for each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conditions import BENCH, TOP, fail, require_positive

from agentgrpo.records.run_dir import RunDir

GROUPS_PER_STEP = 16
TOKENIZER = "tokenizer.json"
_PROGRAM = """
import sys, time
from measure import peak_rss_mb
from agentgrpo.cli.main import main
code = main(["view", sys.argv[1]])
print(time.process_time(), peak_rss_mb())
sys.exit(code)
"""
Group = list[dict[str, Any]]


def recorded_groups(run: RunDir) -> list[Group]:
    """Read the groups of every step, as JSON."""
    groups: list[Group] = []
    for file in run.trajectory_files():
        if file.step is not None:
            rows = [json.loads(line) for line in file.path.read_text().splitlines()[1:]]
            groups += [list(rows) for _, rows in itertools.groupby(rows, key=lambda row: row["group"])]
    return groups


def simulated(groups: Sequence[Group], episodes: int, *, tokens: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the episodes of each step."""
    source = itertools.cycle(groups)
    for step in itertools.count():
        rows: list[dict[str, Any]] = []
        for i, group in enumerate(itertools.islice(source, GROUPS_PER_STEP)):
            name = f"simulated-{step}-{i}"
            own = {"group": name, "task": name, "step": step} | ({} if tokens else {"tokens": None})
            rows += [row | own | {"id": f"{name}/{j}", "sample_index": j} for j, row in enumerate(group)]
        yield rows[:episodes]
        episodes -= len(rows)
        if episodes <= 0:
            return


def write_run(target: Path, source: RunDir, episodes: int, *, tokens: bool) -> None:
    """Write a simulated run directory."""
    folder = target / "trajectories"
    folder.mkdir(parents=True)
    shutil.copy(source.path / "config.yaml", target)
    for step, checkpoint in source.checkpoints().items():
        (copy := target / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        shutil.copy(checkpoint / TOKENIZER, copy)
    metrics = source.metrics()
    with (target / "metrics.jsonl").open("w") as log:
        for step, rows in enumerate(simulated(recorded_groups(source), episodes, tokens=tokens)):
            summary = {"schema_version": 3, "split": "train", "step": step, "total": len(rows)}
            text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in (summary, *rows))
            (folder / f"train-{step:06d}.jsonl").write_text(text)
            clocks = ({"id": row["id"], "time_generate": 1.5, "time_tools": 0.25, "time_queue": 0.1} for row in rows)
            (folder / f"train-{step:06d}.timings.jsonl").write_text("".join(f"{json.dumps(c)}\n" for c in clocks))
            log.write(json.dumps(metrics[step % len(metrics)] | {"step": step}) + "\n")


def measured(run: Path) -> dict[str, float]:
    """Measure one `agentgrpo view`."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(run)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(BENCH), str(TOP)))},
        text=True,
        check=False,
    )
    if done.returncode:
        fail(f"agentgrpo view {run} ended with {done.returncode}", code=1)
    cpu_s, peak_rss_mb = map(float, done.stdout.splitlines()[-1].split())
    return {
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_rss_mb": round(peak_rss_mb),
        "page_mb": round((run / "view.html").stat().st_size / 1e6, 1),
        "recorded_mb": round(sum(file.stat().st_size for file in (run / "trajectories").iterdir()) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="the directory of a run that has recorded its tokens")
    parser.add_argument("--episodes", type=int, nargs="+", default=[2000, 100_000])
    parser.add_argument("--keep", type=Path, help="the folder for the simulated runs; default: one that is removed")
    given = parser.parse_args()
    require_positive(episodes=min(given.episodes))
    source = RunDir(Path(given.run))
    with tempfile.TemporaryDirectory() as temporary:
        for episodes, tokens in itertools.product(given.episodes, (False, True)):
            run = (given.keep or Path(temporary)) / f"simulated-{episodes}-{'with' if tokens else 'without'}-tokens"
            write_run(run, source, episodes, tokens=tokens)
            print(json.dumps({"episodes": episodes, "tokens": tokens, **measured(run)}), flush=True)
            if given.keep is None:
                shutil.rmtree(run)


if __name__ == "__main__":
    main()
