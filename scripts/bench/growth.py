"""Measure how the cost of a step grows: curves, straight-line fits, plots.

    OMP_NUM_THREADS=1 python scripts/bench/growth.py

Each curve changes one property of the tiny work and measures whole steps (rollout, update, records), every point once
on the way up and once on the way down, so that a drift of the machine does not look like growth. Least squares then
show how well the work done explains the seconds. Decoding and feed-forward cost the same for each token, so time should
be a straight line over tokens; attention adds a cost for each pair of a token and a token that it attends to, which
grows with the square of the context. Both count work that must be computed at least once, so a large residual means
work done twice. growth.json has every measurement, .bench/growth/ one plot per curve. The bench takes ten minutes on
one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import conditions
import numpy as np
import torch
from conditions import TOP
from measure import Stopwatch
from ours import one_step, parts_of
from results import show
from rich.table import Table
from works import TINY, Work

from agentgrpo.config.settings import RunSettings
from agentgrpo.core.durable import write_atomic
from agentgrpo.core.types import EpisodeGroup

GROWTH_JSON = TOP / "growth.json"
PLOTS = TOP / ".bench" / "growth"


@dataclass(frozen=True)
class Curve:
    """One property that grows. terms: the measured quantities to which seconds are fitted, besides a constant."""

    name: str
    works: tuple[tuple[float, Work], ...]
    """(value of the property, the tiny work with that value)."""
    terms: tuple[str, ...]
    clock: str = "step_cpu_s"


def curves() -> dict[str, Curve]:
    one_group, two_groups = replace(TINY, tasks=1), replace(TINY, tasks=2)
    found = (
        Curve(
            "group_size",
            tuple((g, replace(two_groups, group_size=g)) for g in (4, 8, 16, 32, 64)),
            ("sampled",),
        ),
        Curve(
            "turns",
            tuple((t, replace(one_group, turns=t)) for t in (1, 2, 4, 8, 12, 16)),
            ("tokens", "pairs"),
        ),
        Curve(
            "context",
            tuple(
                (n, replace(one_group, group_size=4, turns=1, prompt_tokens=n, max_positions=32_768))
                for n in (512, 1024, 2048, 4096, 8192, 16_384)
            ),
            ("tokens", "pairs"),
        ),
        Curve(
            "concurrent_episodes",
            tuple((n, replace(TINY, turns=1, tasks=n // 8)) for n in (8, 32, 128, 256, 512)),
            ("sampled",),
        ),
        Curve(
            "tool_latency_s",
            tuple((s, replace(one_group, latency_s=s)) for s in (0.0, 0.1, 0.3, 0.6, 1.0)),
            ("latency_s",),
            clock="step_wall_s",
        ),
    )
    return {curve.name: curve for curve in found}


@dataclass(frozen=True)
class Point:
    """One measured step."""

    value: float
    step_cpu_s: float
    step_wall_s: float
    sampled: int
    tokens: int
    """Tokens computed at least once; a shared prompt counts once."""
    pairs: int
    """Pairs of a token and a token that it attends to, itself included, each computed at least once: the cost of
    attention.
    """
    latency_s: float


@dataclass(frozen=True)
class Fit:
    """seconds = intercept + sum of slope x term, by least squares of the relative residuals over all points."""

    intercept: float
    slopes: dict[str, float]
    r_squared: float
    """R² of the unweighted seconds."""
    residuals: list[float]
    """Measured - fitted, seconds, one per point."""


def fit(terms: dict[str, Sequence[float]], seconds: Sequence[float]) -> Fit:
    """terms: values per point, by name. A clock's error is proportional, so residuals count as shares of the measured
    seconds. Every column is scaled by its largest value for the solver."""
    y = np.asarray(seconds, dtype=float)
    scales = [max(map(abs, values)) or 1.0 for values in terms.values()]
    columns = [np.asarray(values, dtype=float) / scale for values, scale in zip(terms.values(), scales, strict=True)]
    design = np.column_stack([np.ones_like(y), *columns])
    solution = np.linalg.lstsq(design / y[:, None], np.ones_like(y), rcond=None)[0]
    residuals = y - design @ solution
    return Fit(
        intercept=float(solution[0]),
        slopes={name: float(s / scale) for name, s, scale in zip(terms, solution[1:], scales, strict=True)},
        r_squared=float(1 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum()),
        residuals=residuals.tolist(),
    )


def counts(groups: Sequence[EpisodeGroup]) -> tuple[int, int, int]:
    """(sampled tokens, computed tokens, attended pairs) of a step whose episodes have one branch each."""
    sampled = tokens = pairs = 0
    for group in groups:
        branches = [episode.branches[0].segments for episode in group.episodes]
        prompt = len(branches[0][0].token_ids)
        tokens, pairs = tokens + prompt, pairs + prompt * (prompt + 1) // 2
        for segments in branches:
            own = sum(len(s.token_ids) for s in segments[1:])
            sampled += sum(len(s.token_ids) for s in segments if s.sampled)
            tokens, pairs = tokens + own, pairs + own * prompt + own * (own + 1) // 2
    return sampled, tokens, pairs


async def _measure(value: float, work: Work, warm_up: bool) -> Point:
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(work, RunSettings(dir=folder, max_steps=2))
        watch = Stopwatch()
        for step in range(1 + warm_up):
            rolled, _ = await one_step(parts, step, watch)
    groups = [scored.group for scored in rolled.scored]
    return Point(value, watch.cpu["step"][-1], watch.wall["step"][-1], *counts(groups), work.latency_s)


def measured(curve: Curve) -> list[Point]:
    """Measure all points upwards and downwards; the very first measurement is preceded by a warm-up."""
    points = []
    for number, (value, work) in enumerate([*curve.works, *reversed(curve.works)]):
        points.append(asyncio.run(_measure(value, work, warm_up=number == 0)))
        print(f"{curve.name}={value:g}: {getattr(points[-1], curve.clock):.2f} s", file=sys.stderr)
    return points


def fitted(curve: Curve, points: Sequence[Point]) -> Fit:
    terms = {term: [float(getattr(p, term)) for p in points] for term in curve.terms}
    return fit(terms, [getattr(p, curve.clock) for p in points])


def plot(curve: Curve, points: Sequence[Point], found: Fit, folder: Path) -> None:
    """Plot seconds over the property, and over the fit: a straight line if the fit holds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    seconds = [getattr(p, curve.clock) for p in points]
    predicted = [s - r for s, r in zip(seconds, found.residuals, strict=True)]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    ordered = sorted(zip((p.value for p in points), predicted, strict=True))
    left.plot(*zip(*ordered, strict=True), color="grey")
    left.plot([p.value for p in points], seconds, "o")
    left.set(xlabel=curve.name, ylabel=curve.clock, xlim=(0, None), ylim=(0, None))
    right.plot([0, max(predicted)], [0, max(predicted)], color="grey")
    right.plot(predicted, seconds, "o")
    right.set(xlabel=f"constant + {' + '.join(curve.terms)}, s", ylabel="measured, s")
    right.set_title(f"R² = {found.r_squared:.4f}")
    figure.tight_layout()
    figure.savefig(folder / f"{curve.name}.svg")
    pyplot.close(figure)


def table(fits: dict[str, tuple[Curve, Fit, Sequence[Point]]]) -> Table:
    shown = Table("curve", "seconds", "=", "R²", "largest residual", title="growth of a step (tiny model)")
    for name, (curve, found, points) in fits.items():
        slopes = " + ".join(f"{slope:.3g} x {term}" for term, slope in found.slopes.items())
        largest = max(abs(r) / getattr(p, curve.clock) for r, p in zip(found.residuals, points, strict=True))
        shown.add_row(
            name, curve.clock, f"{found.intercept:.3g} + {slopes}", f"{found.r_squared:.4f}", f"{largest:.1%}"
        )
    return shown


def main() -> None:
    known = curves()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", nargs="+", default=list(known), metavar="CURVE", help=f"of: {', '.join(known)}")
    args = parser.parse_args()
    if unknown := [name for name in args.curves if name not in known]:
        conditions.fail(f"curve {unknown[0]!r} was given; known are {', '.join(known)}")
    if find_spec("matplotlib") is None:
        conditions.fail("growth.py draws with matplotlib, which is not installed; `make bench-growth` installs it")
    conditions.pin()
    torch.set_num_threads(1)
    PLOTS.mkdir(parents=True, exist_ok=True)
    fits, written = {}, {}
    for name in args.curves:
        points = measured(known[name])
        found = fitted(known[name], points)
        fits[name] = (known[name], found, points)
        written[name] = {"points": [vars(p) for p in points], "fit": vars(found)}
        content = {"machine": conditions.machine(), "versions": conditions.versions(), "curves": written}
        write_atomic(GROWTH_JSON, (json.dumps(content, indent=1) + "\n").encode())
        plot(known[name], points, found, PLOTS)
    show(table(fits))


if __name__ == "__main__":
    main()
