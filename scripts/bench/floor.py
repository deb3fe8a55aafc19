"""Compare the rollout with the time that the model's forward alone needs, and with the hardware's limit.

    OMP_NUM_THREADS=1 python scripts/bench/floor.py

floor = decode steps x forward(mean rows, mean keys) + prefill tokens / prefill rate. Steps, rows, keys and prefill
tokens are those of the engine's real rollout (a shared prompt counts once); forward and rate are timed with the model's
own transformers forward in the same process on the same core, right after each rollout. bound: the same steps at the
measured GEMM rate and memory bandwidth. fraction = floor / rollout; at 1 only a change of the model could save time.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import conditions
import results
import torch
from forwards import bound_seconds, clock_of, decode_seconds, measured_rates, prefill_rate
from ours import parts_of
from rich.table import Table
from schedules import ObservedEngine
from works import Work, works

from agentgrpo.config.settings import RunSettings
from agentgrpo.run.parts import Parts
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import roll_out

DEFAULT = ("tiny/latency-0", "small/latency-0")


@dataclass(frozen=True)
class Round:
    """One rollout and its floor, in seconds."""

    rollout: float
    decode_floor: float
    prefill_floor: float
    bound: float
    forward: float
    drawing: float
    script: float
    compute: float
    """Seconds of all engine steps; forward, drawing and script are parts of it."""
    decode_steps: int
    rows: int
    keys: int
    prefill_tokens: int

    @property
    def floor(self) -> float:
        return self.decode_floor + self.prefill_floor

    @property
    def fraction(self) -> float:
        return self.floor / self.rollout

    def gaps(self) -> dict[str, float]:
        """The rollout's time beyond its floor, by stage; the stages add up to the difference."""
        return {
            "forward beyond the floor": self.forward - self.floor,
            "drawing tokens": self.drawing,
            "packing": self.compute - self.forward - self.drawing - self.script,
            "the bench's own script": self.script,
            "scheduling, episodes, event loop": self.rollout - self.compute,
        }


def floor_seconds(decode_steps: int, forward_s: float, prefills: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (decode, prefill) seconds. prefills: (tokens, tokens per second) of each kind of span."""
    return decode_steps * forward_s, sum(tokens / rate for tokens, rate in prefills)


async def one_round(parts: Parts, step: int) -> tuple[Round, Rollout]:
    """Run a rollout and measure its floor."""
    engine = parts.engine
    assert isinstance(engine, ObservedEngine)
    model: Any = parts.trainer.policy.model
    now = clock_of(model.device)
    await engine.load_weights(step)  # clears all keys and values of the previous round
    engine.begin(now)
    began = now()
    rolled = await roll_out(parts, step)
    rollout = now() - began
    schedule, seconds = engine.schedule, dict(engine.seconds)
    kinds = [s for s in (schedule.spans(opening=True), schedule.spans(opening=False)) if s is not None]
    decode, prefill = floor_seconds(
        schedule.decode_steps,
        decode_seconds(model, schedule.rows, schedule.keys, now),
        [(spans.total, prefill_rate(model, spans, now)) for spans in kinds],
    )
    found = Round(
        rollout=rollout,
        decode_floor=decode,
        prefill_floor=prefill,
        bound=bound_seconds(model, schedule.steps, measured_rates(model.device, model.dtype, now)),
        **seconds,
        decode_steps=schedule.decode_steps,
        rows=schedule.rows,
        keys=schedule.keys,
        prefill_tokens=sum(spans.total for spans in kinds),
    )
    return found, rolled


def rounds_of(work: Work, rounds: int) -> list[Round]:
    """Run `rounds` rounds after one warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(work, RunSettings(dir=folder, max_steps=rounds + 1), engine_type=ObservedEngine)

        async def all_rounds() -> list[Round]:
            return [(await one_round(parts, step))[0] for step in range(rounds + 1)]

        return asyncio.run(all_rounds())[1:]


def table(name: str, rounds: Sequence[Round]) -> Table:
    rollout = median(r.rollout for r in rounds)
    title = f"{name}: median of {len(rounds)} rollouts, seconds"
    shown = Table("what", "seconds", "share of rollout", title=title)

    def add(what: str, values: Sequence[float]) -> None:
        shown.add_row(what, f"{median(values):.3f}", f"{median(values) / rollout:.1%}")

    first = rounds[0]
    add("rollout", [r.rollout for r in rounds])
    add(
        f"floor: {first.decode_steps} decodes of {first.rows} rows, {first.keys} keys", [r.decode_floor for r in rounds]
    )
    add(f"floor: {first.prefill_tokens:,} prefill tokens", [r.prefill_floor for r in rounds])
    shown.add_row("fraction = floor / rollout", results.spread([r.fraction for r in rounds]), "")
    add("hardware bound", [r.bound for r in rounds])
    shown.add_section()
    for gap in first.gaps():
        add(f"gap: {gap}", [r.gaps()[gap] for r in rounds])
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=DEFAULT, metavar="WORK", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--rounds", type=int, help="after one that warms up; default 5 for tiny, else 2")
    args = parser.parse_args()
    conditions.require_works(args.works)
    conditions.require_positive(rounds=args.rounds)
    conditions.pin()
    torch.set_num_threads(1)
    for name in args.works:
        work = works()[name]
        rounds = rounds_of(work, args.rounds or (5 if name.startswith("tiny/") else 2))
        row = results.floor_row(name, [r.fraction for r in rounds])
        results.write([row], conditions.versions(), results.BENCH_JSON)
        results.show(table(name, rounds))


if __name__ == "__main__":
    main()
