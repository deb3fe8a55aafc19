"""Compare the learning curves of two sides: rewards by step and by CPU seconds, over seeds.

    run -> smoothed over WINDOW steps -> per step: mean over seeds, and a band of two standard errors of it

- The sides agree at a step if one side's mean lies in the other's band; they agree mutually if each mean lies in the
  other's band.
- The seconds to a reward are interpolated between the first step at which a side's mean is that high and the step
  before: whole steps would depend more on their length than on the sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

WINDOW = 3
LEVELS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Step:
    reward: float
    """Mean over the step's episodes."""
    cpu_s: float


Run = Sequence[Step]


@dataclass(frozen=True)
class Curve:
    """The curve of one side, a number per step."""

    mean: Sequence[float]
    half: Sequence[float]
    """Half the width of the band; 0 with a single seed."""
    cpu_s: Sequence[float]
    """Mean over seeds of the seconds from the start to the end of the step."""

    def seconds_to(self, reward: float) -> float | None:
        """CPU seconds until the mean reward reaches `reward`; None if it never does."""
        points = list(zip(self.mean, self.cpu_s, strict=True))
        if points[0][0] >= reward:
            return points[0][1]
        for (low, began), (high, ended) in pairwise(points):
            if high >= reward:
                return began + (ended - began) * (reward - low) / (high - low)
        return None


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of WINDOW values around each value; fewer at the ends."""
    side = WINDOW // 2
    return [fmean(values[max(0, i - side) : i + side + 1]) for i in range(len(values))]


def curve(runs: Sequence[Run]) -> Curve:
    """runs: of equal length, one per seed."""
    rewards = list(zip(*(smooth([step.reward for step in run]) for run in runs), strict=True))
    seconds = list(zip(*(accumulate(step.cpu_s for step in run) for run in runs), strict=True))
    return Curve(
        mean=[fmean(of_step) for of_step in rewards],
        half=[2 * stdev(of_step) / sqrt(len(of_step)) if len(of_step) > 1 else 0.0 for of_step in rewards],
        cpu_s=[fmean(of_step) for of_step in seconds],
    )


def agreement(a: Curve, b: Curve, *, mutual: bool) -> float:
    """The share of steps at which the sides agree."""
    enough = min if mutual else max
    pairs = zip(a.mean, a.half, b.mean, b.half, strict=True)
    # 1e-9: a difference exactly as wide as the band counts as agreement despite rounding
    return fmean(abs(x - y) <= enough(wide_x, wide_y) + 1e-9 for x, wide_x, y, wide_y in pairs)


def levels(a: Curve, b: Curve) -> list[float]:
    """Rewards that both sides reach and with which neither began, the highest last."""
    highest, lowest = min(max(a.mean), max(b.mean)), max(a.mean[0], b.mean[0])
    return [level for level in LEVELS if lowest < level < highest] + [highest]


def plot(curves: Mapping[str, Curve], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "learning"}
    from matplotlib import pyplot

    figure, (by_step, by_second) = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for name, found in curves.items():
        low, high = ([m + sign * h for m, h in zip(found.mean, found.half, strict=True)] for sign in (-1, 1))
        for axes, x in ((by_step, range(len(found.mean))), (by_second, found.cpu_s)):
            axes.plot(x, found.mean, label=name)
            axes.fill_between(x, low, high, alpha=0.2)
    by_step.set(xlabel="step", ylabel="reward", ylim=(0, 1))
    by_second.set(xlabel="CPU seconds", xlim=(0, None))
    by_step.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
