"""SIGKILL a short run at random instants, again and again, and compare what is left with a run that was never killed.

    python scripts/soak/kill_loop.py --kills 200 --start MODEL_FOLDER [--experiment memory] [key=value ...]

Weights, optimizer, metrics.jsonl and every trajectory must be equal to the byte. The kills fall anywhere between the
first instruction of a process and its last, so training, checkpointing, pruning, evaluating and resuming are all hit.
A parent that has imported everything (and computed nothing) forks one process per life: a life costs its work, not its
imports. Prints a closing line "N passed, N failed": one for every run that reached its end.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # threads that exist before the fork would be missing after it

import agentgrpo.cli.verbs
from agentgrpo.cli.main import main

WORLDS = {
    "almanac": [
        *("task.num_companies=12", "task.dev_companies=4", "task.test_companies=4"),
        *("rollout=almanac_tiny", "optimizer=tiny"),
    ],
    "memory": [
        *("task.train_diaries=24", "task.dev_diaries=6", "task.test_diaries=11", "task.long_days=12"),
        *("model.renderer=tags", "model.describe_tools=false", "environment.instructions=null"),
        *("rollout=diary_tiny", "optimizer=diary_tiny"),
    ],
}
"""Experiment -> what makes its world a small one, and what its model was warm-started with."""
SETTINGS = [
    "hardware.threads=1",
    "run.screen=plain",
    "run.log_with=[]",
    "run.max_steps=6",
    "run.checkpoint_every=2",
    "run.eval_every=3",
    "run.eval_tasks=10",
    "run.eval.tasks=20",
    "rollout.tasks_per_step=4",
    "rollout.group_size=4",
]
KILLED = -signal.SIGKILL


def life(arguments: list[str], log: Path, seconds: float | None) -> int:
    """One process with these arguments, killed after `seconds`; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        code = 1
        try:
            code = main(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def record(run_dir: Path) -> dict[str, bytes]:
    """Every file that must be equal, by name. Clocks have files of their own; orphans are not part of the record."""
    files = [run_dir / "metrics.jsonl", run_dir / "eval.json"]
    files += [p for p in run_dir.glob("trajectories/*.jsonl") if ".timings." not in p.name]
    files += [p for p in run_dir.glob("checkpoints/*/**/*") if p.is_file()]
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in files}


def survive(run_dir: Path, settings: list[str], rng: random.Random, longest: float, budget: int) -> int:
    """Train, kill, resume, kill ... until the run has reached its end; the number of kills it took."""
    kills, log = 0, run_dir.with_suffix(".log")
    while True:
        begun = (run_dir / "config.yaml").exists()
        arguments = ["resume", str(run_dir)] if begun else ["train", *settings, f"run.dir='{run_dir}'"]
        code = life(arguments, log, rng.uniform(0, longest) if kills < budget else None)
        if code == 0:
            return kills
        if code != KILLED:
            raise SystemExit(f"a life after {kills} kills ended with exit code {code}:\n{log.read_text()[-3000:]}")
        kills += 1


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--start", required=True, help="model folder to train from")
    parser.add_argument("--experiment", choices=WORLDS, default="almanac")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills-per-run", type=int, default=10)
    parser.add_argument("overrides", nargs="*", help="further settings of the run, such as algorithm.max_staleness=1")
    options = parser.parse_args()
    world = [f"experiment={options.experiment}", *WORLDS[options.experiment]]
    settings = [*world, *SETTINGS, "model=path", f"model.path='{options.start}'", *options.overrides]
    rng = random.Random(options.seed)
    passed = failed = kills = 0
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(scratch) / "run"  # the same for every run: checkpoints name it
        log = run_dir.with_suffix(".log")
        began = time.monotonic()
        if code := life(["train", *settings, f"run.dir='{run_dir}'"], log, None):
            raise SystemExit(f"the run that nobody kills ended with exit code {code}:\n{log.read_text()}")
        longest = time.monotonic() - began
        expected = record(run_dir)
        while kills < options.kills:
            shutil.rmtree(run_dir)
            log.unlink()
            kills += survive(run_dir, settings, rng, longest, min(options.kills_per_run, options.kills - kills))
            found = record(run_dir)
            differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
            if differing:
                failed += 1
                print(f"differs from the run that was never killed: {', '.join(differing)}")
            else:
                passed += 1
            print(f"{kills} kills, {passed + failed} runs, longest life {longest:.1f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    assert agentgrpo.cli.verbs  # imported for its weight: every fork inherits it
    cli()
