"""Paired comparison of two policies on the same tasks: differences with bootstrap intervals, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """What `agentgrpo eval --gate` exits with."""
        return {"PASS": 0, "FAIL": 9, "INCONCLUSIVE": 10}[self.value]


def paired_difference(
    baseline: Sequence[float], trained: Sequence[float], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """(mean, low, high) of trained − baseline over tasks, with the 95 % percentile interval of a bootstrap over tasks
    (Efron & Tibshirani 1993, ch. 13). Rows pair up by position. Raises ValueError for unequal or no rows."""
    if len(baseline) != len(trained) or not baseline:
        raise ValueError(
            f"a paired difference needs equally many tasks on both sides, got {len(baseline)} and {len(trained)}"
        )
    difference = np.asarray(trained, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(difference), size=(resamples, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def verdict(
    difference: Mapping[str, Sequence[float]],
    discrimination: Sequence[float],
    *,
    quality: str,
    thrift: str,
    margin: float,
    min_discrimination: float,
) -> tuple[Verdict, str]:
    """PASS iff `thrift` is lower and `quality` is not, both beyond noise, and quality means something.

    `difference` maps a metric, such as those two, to (mean, low, high) of trained − baseline. `discrimination` is
    (mean, low, high) of the trained policy's quality minus the grade the same judge gives its answers against *other*
    tasks' references: a judge that likes everything, or a policy that is never right, cannot pass whatever it saves.
    """
    _, spent_low, spent_high = difference[thrift]
    _, right_low, right_high = difference[quality]
    right, spent = quality.replace("_", " "), thrift.replace("_", " ")
    if right_high < 0 or spent_low > 0:
        return Verdict.FAIL, f"{right} fell" if right_high < 0 else f"{spent} rose"
    if discrimination[1] < min_discrimination:
        return Verdict.INCONCLUSIVE, (
            "the policy's answers are graded hardly better than answers to other questions: it is hardly ever right, "
            "or the judge likes everything"
        )
    if spent_high >= 0:
        return Verdict.INCONCLUSIVE, f"{spent} are not lower beyond the interval's noise"
    if right_low < -margin:
        return Verdict.INCONCLUSIVE, f"a loss of {right} of more than {margin:g} cannot be ruled out"
    return Verdict.PASS, f"fewer {spent}, {right} not lower"


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased pass@k from `correct` right answers among `samples` (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples, got {correct}, {samples}, {k}")
    return (
        float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1))) if samples - correct >= k else 1.0
    )
