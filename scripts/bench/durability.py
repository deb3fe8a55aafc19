"""The cost of durable files: the share of records and checkpoints in a training step, at the default cadence.

    OMP_NUM_THREADS=1 python scripts/bench/durability.py

Real runs with run.profile=true, whose stage clock records the wall time of each stage: the first run of the README
(with a warm start first, if that is not cached: two minutes more), and the tiny and small works. `records` are
trajectories and metrics, synced to the disk, timings, trackers and the screen; a checkpoint is written, synced and read
again. Checkpoints are taken every second step here, to have enough to measure, and counted at the default cadence.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import conditions
import torch
from ours import parts_of
from results import show
from rich.table import Table
from transformers.utils.logging import disable_progress_bar
from works import Work, works

from agentgrpo.cli.main import main as agentgrpo
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.stages import Stage, StageClock
from agentgrpo.records.metrics import PROFILE, read_metrics
from agentgrpo.run.context import RunContext
from agentgrpo.run.parts import Progress
from agentgrpo.run.train import train

ALMANAC = "almanac"
EVERY = 2
CADENCE = RunSettings(dir="").checkpoint_every
"""Default number of steps between checkpoints."""


@dataclass(frozen=True)
class Share:
    """Seconds of one step at the default cadence."""

    work_s: float
    """Everything except files: rollout, reward, update, sync."""
    records_s: float
    checkpoint_s: float
    """Seconds of one checkpoint, written every `cadence` steps."""
    cadence: int

    @property
    def step_s(self) -> float:
        return self.work_s + self.records_s + self.checkpoint_s / self.cadence

    @property
    def share(self) -> float:
        """Share of records and checkpoints in the step."""
        return 1 - self.work_s / self.step_s


def share_of(rows: Sequence[Mapping[str, float]], cadence: int) -> Share:
    """Medians of the rows of profile.jsonl: over all steps, and for checkpoints over the steps that have one."""
    records, checkpoint, evaluation = Stage.RECORDS.value, Stage.CHECKPOINT.value, Stage.EVALUATION.value
    return Share(
        work_s=median(row["total"] - row[records] - row[checkpoint] - row[evaluation] for row in rows),
        records_s=median(row[records] for row in rows),
        checkpoint_s=median(row[checkpoint] for row in rows if row[checkpoint]),
        cadence=cadence,
    )


def profile_of_work(work: Work, steps: int, folder: Path) -> list[Mapping[str, float]]:
    """Run `work` and return its profile.jsonl."""
    run = RunSettings(dir=str(folder), max_steps=steps, checkpoint_every=EVERY, eval_every=0, profile=True)
    parts = replace(parts_of(work, run), clock=StageClock())

    async def whole_run() -> None:
        with RunContext(parts.world, "start again", grace_s=60, at_once=lambda: None) as ctx:
            await train(parts, Progress(), ctx)

    asyncio.run(whole_run())
    return read_metrics(folder / PROFILE)


def profile_of_almanac(steps: int, folder: Path) -> list[Mapping[str, float]]:
    """Train the default run through the command line and return its profile.jsonl."""
    settings = ["reward=retriever_aware", f"run.dir='{folder}'", f"run.max_steps={steps}", "run.profile=true"]
    settings += [f"run.checkpoint_every={EVERY}", "run.eval_every=0", "run.final_eval=false", "run.screen=quiet"]
    if code := agentgrpo(["train", *settings, "hardware.threads=1"]):
        conditions.fail(f"agentgrpo train ended with {code}", 1)
    return read_metrics(folder / PROFILE)


def main() -> None:
    names = (ALMANAC, "tiny/latency-0", "small/latency-0")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=names, metavar="WORK", help=f"default: {' '.join(names)}")
    parser.add_argument("--steps", type=int, help="default 15 for the almanac, 9 for tiny, else 3")
    args = parser.parse_args()
    conditions.require_works([name for name in args.works if name != ALMANAC])
    conditions.require_positive(steps=args.steps)
    conditions.pin()
    torch.set_num_threads(1)
    disable_progress_bar()
    columns = ("run", "step, s", "records, s", "a checkpoint, s", f"share, a checkpoint every {CADENCE} steps")
    shown = Table(*columns, title="durability: medians of wall seconds")
    for name in args.works:
        with tempfile.TemporaryDirectory() as folder:
            if name == ALMANAC:
                rows = profile_of_almanac(args.steps or 15, Path(folder))
            else:
                steps = args.steps or (9 if name.startswith("tiny/") else 3)
                rows = profile_of_work(works()[name], steps, Path(folder))
        found = share_of(rows[1:], CADENCE)  # the first step is warm-up
        figures = (found.step_s, found.records_s, found.checkpoint_s)
        shown.add_row(name, *(f"{seconds:.4f}" for seconds in figures), f"{found.share:.2%}")
    show(shown)


if __name__ == "__main__":
    main()
