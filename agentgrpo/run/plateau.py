"""When a run stopped learning: finds the start of a plateau in its metrics and reports it in one line.

A group of equal rewards has zero variance and teaches nothing. The plateau begins with the first step from which on
groups with a signal are few (at most FEW): in that step, on average over ten steps from there, and over the rest of the
run from there or from any later step with ten left. Ten steps of the plateau are enough to recognise it. Comparing the
mean reward of these ten steps with that of all later ones shows what the run would have lost by ending there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FEW = 0.2
"""Share of groups with a signal, at most, on a plateau."""
ENOUGH = 10
"""Steps of a plateau that are enough to recognise it."""
INFORMATIVE, REWARD = "groups/informative", "reward/mean"


def plateau_line(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Report the plateau in the rows of metrics.jsonl, or return None if there is no plateau, or too little of the run
    after its first ten steps to tell."""
    known = [row for row in rows if row.get(INFORMATIVE) is not None and row.get(REWARD) is not None]
    begin = _begin([row[INFORMATIVE] for row in known])
    if begin is None or begin + 2 * ENOUGH > len(known):
        return None
    first, end = known[begin]["step"], known[begin + ENOUGH]["step"]
    share = 1 - float(np.mean([row[INFORMATIVE] for row in known[begin:]]))
    rewards = [row[REWARD] for row in known[begin:]]
    mean, low, high = _change(rewards[:ENOUGH], rewards[ENOUGH:])
    said = f"note: zero-variance groups {share:.0%} since step {first}".replace("%", " %")
    if low <= 0 <= high:
        return f"{said}; run.max_steps={end} would have shown the same"
    word = "rose" if mean > 0 else "fell"
    interval = f"95 % interval [{low:+.3f}, {high:+.3f}]"
    return f"{said}; yet the mean reward {word} by {abs(mean):.3f} after step {end}, {interval}"


def _begin(shares: Sequence[float]) -> int | None:
    """Return the first place from which on the shares are few, or None."""
    found = None
    for place in range(len(shares) - ENOUGH, -1, -1):
        if np.mean(shares[place:]) > FEW:
            break
        if shares[place] <= FEW and np.mean(shares[place : place + ENOUGH]) <= FEW:
            found = place
    return found


def _change(before: Sequence[float], after: Sequence[float], *, resamples: int = 2000) -> tuple[float, float, float]:
    """Return (mean, low, high) of after − before, with the 95 % percentile interval of a bootstrap over their steps."""
    draws = np.random.default_rng(0)
    means = [draws.choice(values, size=(resamples, len(values))).mean(axis=1) for values in (before, after)]
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5])
    return float(np.mean(after) - np.mean(before)), float(low), float(high)
