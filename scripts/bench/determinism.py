"""The cost of engine.deterministic=true: rollouts with and without it, A B A B in one process on one core.

OMP_NUM_THREADS=1 python scripts/bench/determinism.py
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from statistics import median

import conditions
import torch
from ours import parts_of
from results import show, spread
from rich.table import Table
from works import Work, works

from agentgrpo.config.settings import RunSettings
from agentgrpo.run.parts import Parts
from agentgrpo.run.train import roll_out

DEFAULT = ("tiny/latency-0", "small/latency-0")


async def rollout_cpu_s(parts: Parts, step: int) -> float:
    """CPU seconds of one rollout, with nothing cached from the previous one."""
    await parts.engine.load_weights(step)
    began = time.process_time()
    await roll_out(parts, step)
    return time.process_time() - began


def seconds_of(work: Work, pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of `pairs` rollouts each (deterministic, free), after one warm-up of each."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunSettings(dir=folder, max_steps=pairs + 1)
        both = [parts_of(work, run, deterministic=deterministic) for deterministic in (True, False)]

        async def alternate() -> list[list[float]]:
            return [[await rollout_cpu_s(parts, step) for parts in both] for step in range(pairs + 1)]

        measured = asyncio.run(alternate())[1:]
    return [m[0] for m in measured], [m[1] for m in measured]


def cost(deterministic: Sequence[float], free: Sequence[float]) -> float:
    """The additional time of the deterministic rollout as a share of the free one: the median over pairs."""
    return median(a / b - 1 for a, b in zip(deterministic, free, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=DEFAULT, metavar="WORK", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--pairs", type=int, help="after one that warms up; default 8 for tiny, else 2")
    args = parser.parse_args()
    conditions.require_works(args.works)
    conditions.require_positive(pairs=args.pairs)
    conditions.pin()
    torch.set_num_threads(1)
    shown = Table("work", "deterministic, CPU s", "free, CPU s", "cost", "cost by pair", title="a rollout")
    for name in args.works:
        a, b = seconds_of(works()[name], args.pairs or (8 if name.startswith("tiny/") else 2))
        by_pair = ", ".join(f"{x / y - 1:+.1%}" for x, y in zip(a, b, strict=True))
        shown.add_row(name, spread(a), spread(b), f"{cost(a, b):+.1%}", by_pair)
    show(shown)


if __name__ == "__main__":
    main()
