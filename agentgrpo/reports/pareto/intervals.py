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
"""After the point."""


def interval(rows: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Of the mean over rows[run][task], with the 95 % percentile interval of a bootstrap over tasks (Efron & Tibshirani
    1993, ch. 13); with several runs, seeds of one setting, over runs and tasks, the same tasks in each run. Raises
    ValueError without a value, and for rows of different lengths."""
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"an interval needs a value for each run and task, got shape {values.shape}")
    return _between(float(values.mean()), _resampled(values, resamples, seed, side=1))


def _resampled(values: NDArray[np.float64], resamples: int, seed: int, *, side: int) -> NDArray[np.float64]:
    """Means over runs and tasks, both drawn again. side: of another one other runs are drawn, and the same tasks."""
    runs, tasks = values.shape
    drawn = _drawn(tasks, resamples, seed)
    means = np.stack([row[drawn].mean(axis=1) for row in values], axis=1)
    if runs > 1:
        chosen = np.random.default_rng([seed, side]).integers(0, runs, size=(resamples, runs))
        means = np.take_along_axis(means, chosen, axis=1)
    found: NDArray[np.float64] = means.mean(axis=1)
    return found


def _between(mean: float, resampled: NDArray[np.float64]) -> Interval:
    """Without the last digits, which say in which order it was added up: equal figures are equal."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return [round(float(value), _DIGITS) for value in (mean, low, high)]


@lru_cache(maxsize=4)
def _drawn(tasks: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """As run.evaluate draws them."""
    return np.random.default_rng(seed).integers(0, tasks, size=(resamples, tasks))


def difference(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, paired_runs: bool, seed: int = 0
) -> Interval:
    """Of b − a, paired by task; paired_runs: by run, too (the same seeds), or else of the means over runs, those of
    either side drawn for themselves."""
    before, now = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired_runs:
        return interval((now - before).tolist(), seed=seed)
    sides = [_resampled(side, RESAMPLES, seed, side=i) for i, side in ((1, before), (2, now))]
    return _between(float(now.mean() - before.mean()), sides[1] - sides[0])
