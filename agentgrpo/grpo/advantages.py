"""Advantages: the rewards of one group -> the credit of each of its episodes.

None = an episode that could not be scored: it stays None and takes no part in the statistics. A group with fewer than
two scored rewards, or whose scored rewards all lie within 1e-9, carries no information: exact zeros, so that rounding
noise is never divided by a tiny spread. Sums are exact (`math.fsum`): the order within a group changes no bit.

A new advantage is one decorated function and one line of ADVANTAGES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from agentgrpo.errors import TrainingError
from agentgrpo.types import is_degenerate_group


class Advantage(Protocol):
    def __call__(self, rewards: Sequence[float | None], *, eps: float = 1e-6) -> list[float | None]:
        """One advantage per reward, in order. Raises TrainingError for a reward that is not finite."""
        ...


def _of_scored(formula: Callable[[list[float], float], list[float]]) -> Advantage:
    """Apply `formula(scored rewards, eps)` to the scored rewards of an informative group."""

    def advantage(rewards: Sequence[float | None], *, eps: float = 1e-6) -> list[float | None]:
        scored = [r for r in rewards if r is not None]
        if not all(map(math.isfinite, scored)):
            raise TrainingError(f"rewards {list(rewards)}: only finite rewards are allowed; None marks an unscored one")
        values = iter([0.0] * len(scored) if is_degenerate_group(rewards) else formula(scored, eps))
        return [None if r is None else next(values) for r in rewards]

    advantage.__name__ = formula.__name__
    advantage.__doc__ = formula.__doc__
    return advantage


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@_of_scored
def group_zscore(rewards: list[float], eps: float) -> list[float]:
    """(r - mean) / (population std + eps). GRPO, arXiv 2402.03300, equation 3 and below."""
    mean = _mean(rewards)
    std = math.sqrt(_mean([(r - mean) ** 2 for r in rewards]))
    return [(r - mean) / (std + eps) for r in rewards]


@_of_scored
def group_mean(rewards: list[float], eps: float) -> list[float]:
    """r - mean; `eps` has no place in it. Dr. GRPO, arXiv 2503.20783: a std would weigh questions unequally."""
    mean = _mean(rewards)
    return [r - mean for r in rewards]


@_of_scored
def leave_one_out(rewards: list[float], eps: float) -> list[float]:
    """r - mean of the others = n/(n-1) (r - mean), an unbiased baseline; `eps` has no place in it.
    RLOO, arXiv 2402.14740."""
    mean, n = _mean(rewards), len(rewards)
    return [(r - mean) * n / (n - 1) for r in rewards]


ADVANTAGES: dict[str, Advantage] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
}
