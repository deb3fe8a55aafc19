"""Means over runs and tasks, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Interval = list[float | None]
"""[mean, low, high]."""
RESAMPLES = 2000
_DIGITS = 12
"""Decimal places."""


def interval(rows: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Mean over rows[run][task], with the 95 % percentile interval of a bootstrap over tasks (Efron & Tibshirani 1993,
    ch. 13). Several runs, the seeds of one setting, are resampled too; each resample has the same tasks in every run.
    Raises ValueError without a value, and for rows of different lengths."""
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"an interval needs a value for each run and task, got shape {values.shape}")
    return _between(float(values.mean()), _resampled(values, resamples, seed, side=1))


def _resampled(values: NDArray[np.float64], resamples: int, seed: int, *, side: int) -> NDArray[np.float64]:
    """Means over resampled runs and tasks. side: another side draws other runs but the same tasks."""
    runs, tasks = values.shape
    drawn = _drawn(tasks, resamples, seed)
    means = np.stack([row[drawn].mean(axis=1) for row in values], axis=1)
    if runs > 1:
        chosen = np.random.default_rng([seed, side]).integers(0, runs, size=(resamples, runs))
        means = np.take_along_axis(means, chosen, axis=1)
    found: NDArray[np.float64] = means.mean(axis=1)
    return found


def _between(mean: float, resampled: NDArray[np.float64]) -> Interval:
    """Round away the last digits, which depend on the order of summation, so that equal figures compare equal."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return [round(float(value), _DIGITS) for value in (mean, low, high)]


@lru_cache(maxsize=4)
def _drawn(tasks: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Task indices, drawn as run.evaluate draws them."""
    return np.random.default_rng(seed).integers(0, tasks, size=(resamples, tasks))


def difference(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, paired_runs: bool, seed: int = 0
) -> Interval:
    """Mean and interval of b − a, paired by task. paired_runs: also paired by run (the same seeds); otherwise the runs
    of each side are resampled independently."""
    before, now = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired_runs:
        return interval((now - before).tolist(), seed=seed)
    sides = [_resampled(side, RESAMPLES, seed, side=i) for i, side in ((1, before), (2, now))]
    return _between(float(now.mean() - before.mean()), sides[1] - sides[0])
