"""Compare learning curves and CPU seconds of ours and TRL: both train a real model on the same tasks.

    python scripts/bench/learning.py --seeds 3 --steps 14

SmolLM2-135M after a cold start on problems of one operation; then problems of two operations, with a calculator. For
every seed ours runs first (`agentgrpo train`), then TRL's GRPOTrainer with `tools=[calculator]`, from the same weights,
on the tasks that ours has drawn, with the same settings (peer_learning.py). For TRL, glibc is told to keep big blocks,
which makes it faster. A finished seed is not run again: .bench/learning has a file of steps per side and seed, the
figure and learning.json; remove the folder to start over, and after any change of the settings below. The bench takes
an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import conditions
from compare import KEEP_BLOCKS, PEER
from conditions import BENCH, TOP, fail
from learning_curves import Curve, Step, agreement, curve, levels, plot
from results import show
from rich.table import Table

from agentgrpo.core.durable import write_atomic

FOLDER = TOP / ".bench" / "learning"
SIDES = ("ours", "TRL")
TASK = (
    "experiment=smollm2",
    "task.shown=[both,both,fewer,fewer,rows,rows,none]",
    "task.asked=[left,more]",
    "reward=correctness",
)
EQUAL = (
    "algorithm.advantage=group_mean",
    "optimizer.lr=5e-5",
    "optimizer.warmup_steps=0",
    "optimizer.final_fraction=1",
    "rollout.tasks_per_step=6",
    "rollout.group_size=8",
)
"""Settings that both sides support and that are affordable."""
BARE = (
    "hardware.threads=1",
    "run.final_eval=false",
    "run.eval_every=0",
    "run.log_with=[]",
    "run.screen=plain",
)


def train(run: Path, *settings: str) -> None:
    """Run `agentgrpo train` from the start."""
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *TASK, *settings, *BARE, f"run.dir={run}"]
    execute(command, run.with_suffix(".log"))


def execute(command: Sequence[str | Path], log: Path, **environment: str) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(TOP)}
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            command, env={**plain, **one_thread, **environment}, stdout=file, stderr=file, cwd=TOP, check=False
        )
    if done.returncode:
        last = (log.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"])[-1]
        fail(f"{log.stem} ended with {done.returncode}: {last}; all it said is in {log}", 1)


def start_weights() -> Path:
    """The model after its cold start: the checkpoint before the first step of a run."""
    run = FOLDER / "start"
    found = run / "checkpoints" / "step-000000"
    if not found.is_dir():
        train(run, "rollout.tasks_per_step=2", "rollout.group_size=2", "run.max_steps=1", "run.checkpoint_every=1")
    return found


def learn_ours(seed: int, steps: int, out: Path) -> None:
    given = (f"model.path={start_weights()}", "model.revision=null", "model.cold_start.demonstrations=0")
    run = run_of(seed)
    train(run, *given, *EQUAL, f"run.max_steps={steps}", "run.checkpoint_every=0", f"run.seed={seed}")
    metrics, timings = (rows_of(run / name) for name in ("metrics.jsonl", "timings.jsonl"))
    cpu_s = {row["step"]: row["time/cpu"] for row in timings if "time/cpu" in row}
    write(
        out,
        [
            {
                "step": row["step"],
                "reward": row["reward/mean"],
                "sampled": row["tokens/sampled"],
                "cpu_s": cpu_s[row["step"]],
            }
            for row in metrics
        ],
    )


def learn_theirs(seed: int, out: Path) -> None:
    unfinished = FOLDER / f"TRL-{seed}.unfinished"
    command = [PEER, "-W", "ignore", BENCH / "peer_learning.py", run_of(seed), "--out", unfinished]
    execute(command, FOLDER / f"TRL-{seed}.log", **KEEP_BLOCKS)
    unfinished.rename(out)


def run_of(seed: int) -> Path:
    """Our run, which TRL's run follows."""
    return FOLDER / f"run-{seed}"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_atomic(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def learned(seeds: int, steps: int) -> dict[str, list[list[dict[str, Any]]]]:
    """The rows of every run by side; missing runs are made first."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in SIDES}
    for seed in range(seeds):
        for side in SIDES:
            path = FOLDER / f"{side}-{seed}-{steps}.jsonl"
            if not path.exists():
                print(f"bench: {side}, seed {seed}", file=sys.stderr, flush=True)
                learn_ours(seed, steps, path) if side == "ours" else learn_theirs(seed, path)
            found[side].append(rows_of(path))
    return found


def summary(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """The data of the figure and the table. Pairs are (ours, TRL's)."""
    curves = [curve([[Step(row["reward"], row["cpu_s"]) for row in run] for run in runs[side]]) for side in SIDES]
    every = [[row for run in runs[side] for row in run] for side in SIDES]
    return {
        "seeds": len(runs[SIDES[0]]),
        "curves": {side: asdict(found) for side, found in zip(SIDES, curves, strict=True)},
        "agreement": agreement(*curves, mutual=False),
        "mutual_agreement": agreement(*curves, mutual=True),
        "cpu_s_per_step": [fmean(row["cpu_s"] for row in rows) for rows in every],
        "sampled_per_step": [fmean(row["sampled"] for row in rows) for rows in every],
        "mean_reward": [[fmean(row["reward"] for row in run) for run in runs[side]] for side in SIDES],
        "cpu_s_to": [[level, *(found.seconds_to(level) for found in curves)] for level in levels(*curves)],
    }


def table(found: Mapping[str, Any]) -> Table:
    shown = Table("", *SIDES, "ratio", title=f"seeds: {found['seeds']}")
    pairs = {"CPU s a step": found["cpu_s_per_step"]}
    pairs |= {f"CPU s to a reward of {level:.2f}": both for level, *both in found["cpu_s_to"]}
    for name, (ours, theirs) in pairs.items():
        shown.add_row(name, f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}")
    shown.add_row("tokens sampled a step", *(f"{tokens:.0f}" for tokens in found["sampled_per_step"]), "")
    if found["seeds"] > 1:  # a band needs several seeds
        agreed, mutually = found["agreement"], found["mutual_agreement"]
        shown.add_row("steps at which they agree", f"{agreed:.0%}", f"mutually {mutually:.0%}", "")
    rewards = (", ".join(f"{reward:.3f}" for reward in of_seeds) for of_seeds in found["mean_reward"])
    shown.add_row("mean reward of all steps, by seed", *rewards, "")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of each side")
    parser.add_argument("--steps", type=int, default=14, help="of a run, 48 episodes each")
    args = parser.parse_args()
    conditions.require_positive(seeds=args.seeds, steps=args.steps)
    if find_spec("matplotlib") is None:
        fail("learning.py draws with matplotlib, which is not installed; `make bench-learning` installs it")
    if not PEER.exists():
        fail(f"there is no peer in {PEER.parents[1]}; `make bench-learning` installs it")
    conditions.pin()
    found = summary(learned(args.seeds, args.steps))
    content = {"machine": conditions.machine(), "versions": conditions.versions(), **found}
    write_atomic(FOLDER / "learning.json", (json.dumps(content, indent=1) + "\n").encode())
    plot({side: Curve(**found["curves"][side]) for side in SIDES}, FOLDER / "learning.svg")
    show(table(found))


if __name__ == "__main__":
    main()
