"""The gain of algorithm.max_staleness=1: whole training runs with and without it, alternating A B A B, in one process.

    OMP_NUM_THREADS=1 python scripts/bench/pipeline.py

With staleness 1, the rollout of the next step runs beside the update: on one core its tools' latency is hidden, on two
cores its computation as well. The figures include the costs: a second copy of the weights, and the correction of older
samples.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import conditions
import torch
from ours import parts_of
from results import show, spread
from rich.table import Table
from transformers.utils.logging import disable_progress_bar
from works import Work, works

from agentgrpo.config.settings import RunSettings
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.run.context import RunContext
from agentgrpo.run.parts import Progress
from agentgrpo.run.train import train

WORKS = ("tiny/latency-0", "small/latency-0")
LATENCIES_MS = (0, 200)
MARGIN = 2
"""Uncounted steps at the start of a run: the first is warm-up, and nothing runs beside its rollout."""


def step_seconds(work: Work, max_staleness: int, steps: int) -> tuple[float, float]:
    """(wall, CPU) seconds of a step: medians of `steps` steps in a run of a few more."""
    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = RunSettings(dir=folder, max_steps=steps + MARGIN + 1, checkpoint_every=0, eval_every=0)
        parts = parts_of(work, run, algorithm=Algorithm(max_staleness=max_staleness))
        parts = replace(parts, show=lambda _: ends.append((time.perf_counter(), time.process_time())))

        async def whole_run() -> None:
            with RunContext(parts.world, "start again", grace_s=60, at_once=lambda: None) as ctx:
                await parts.engine.load_weights(0)
                await train(parts, Progress(), ctx)

        asyncio.run(whole_run())
    # no rollout runs beside the last step, so its update is not counted either
    counted = list(pairwise(ends[MARGIN - 1 : -1]))
    return median(b[0] - a[0] for a, b in counted), median(b[1] - a[1] for a, b in counted)


def use_cores(count: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(ALLOWED)[:count])


ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def gain(apart: Sequence[float], beside: Sequence[float]) -> float:
    """Speed-up of the overlapping run by the wall clock: the median over pairs."""
    return median(a / b for a, b in zip(apart, beside, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=WORKS, metavar="WORK", help=f"default: {' '.join(WORKS)}")
    parser.add_argument("--latencies", nargs="+", type=int, default=LATENCIES_MS, metavar="MS")
    parser.add_argument(
        "--cores", nargs="+", type=int, default=(1, 2), help="default: 1 2, as far as there are so many"
    )
    parser.add_argument("--pairs", type=int, help="default 3 for tiny, else 1")
    parser.add_argument("--steps", type=int, help="default 6 for tiny, else 2")
    args = parser.parse_args()
    conditions.require_works(args.works)
    conditions.require_positive(pairs=args.pairs, steps=args.steps)
    torch.set_num_threads(1)
    disable_progress_bar()
    columns = ("work", "tools, ms", "cores", "staleness 0, wall s", "CPU s", "staleness 1, wall s", "CPU s", "ratio")
    shown = Table(*columns, title="a step")
    for name in args.works:
        is_tiny = name.startswith("tiny/")
        pairs, steps = args.pairs or (3 if is_tiny else 1), args.steps or (6 if is_tiny else 2)
        for ms in args.latencies:
            work = replace(works()[name], latency_s=ms / 1e3)
            for cores in sorted({min(n, len(ALLOWED)) for n in args.cores}):
                use_cores(cores)
                found = [[step_seconds(work, staleness, steps) for staleness in (0, 1)] for _ in range(pairs)]
                walls, cpus = ([[pair[i][kind] for pair in found] for i in (0, 1)] for kind in (0, 1))
                figures = [text for i in (0, 1) for text in (spread(walls[i]), f"{median(cpus[i]):.2f}")]
                shown.add_row(name, str(ms), str(cores), *figures, f"{gain(*walls):.2f} ×")
    show(shown)


if __name__ == "__main__":
    main()
