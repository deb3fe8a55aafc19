"""Advantages: the rewards of a step's groups -> the credit of each of their episodes.

None = an episode that could not be scored: it stays None and takes no part in the statistics. A group with fewer than
two scored rewards, or whose scored rewards all lie within 1e-9, carries no information: exact zeros, so that rounding
noise is never divided by a tiny spread. Sums are exact (`math.fsum`): the order within a group changes no bit.

A new advantage is one function and one line of ADVANTAGES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from agentgrpo.errors import TrainingError
from agentgrpo.types import is_degenerate_group


class GroupRewards(NamedTuple):
    """The rewards of one group's episodes, in order."""

    totals: Sequence[float | None]
    """None = could not be scored."""
    terms: Sequence[Mapping[str, float]] = ()
    """What each total is made of, by name; what an episode does not name is 0. Only `per_term` reads it."""


class Advantage(Protocol):
    def __call__(self, groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
        """For each group one advantage per episode, in order. Raises TrainingError for a reward that is not finite."""
        ...


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """Of the population."""
    mean = _mean(values)
    return math.sqrt(_mean([(x - mean) ** 2 for x in values]))


def _scored(rewards: Sequence[float | None]) -> list[float]:
    scored = [r for r in rewards if r is not None]
    if not all(map(math.isfinite, scored)):
        raise TrainingError(f"rewards {list(rewards)}: only finite rewards are allowed; None marks an unscored one")
    return scored


def _informative(rewards: Sequence[float | None], formula: Callable[[list[float]], list[float]]) -> list[float | None]:
    """`formula` of the scored rewards of a group, zeros where they are no information, None where the reward is."""
    scored = _scored(rewards)
    values = iter([0.0] * len(scored) if is_degenerate_group(rewards) else formula(scored))
    return [None if r is None else next(values) for r in rewards]


def group_zscore(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """(r - mean) / (population std + eps), both of the group. GRPO, arXiv 2402.03300, equation 3 and below."""

    def formula(rewards: list[float]) -> list[float]:
        mean, std = _mean(rewards), _std(rewards)
        return [(r - mean) / (std + eps) for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def group_mean(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """r - mean of the group; `eps` has no place in it. Dr. GRPO, arXiv 2503.20783: a std would weigh questions
    unequally."""

    def formula(rewards: list[float]) -> list[float]:
        mean = _mean(rewards)
        return [r - mean for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def batch_zscore(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """(r - mean of the group) / (population std of all rewards of the step + eps). Lite PPO, arXiv 2508.08221."""
    every = [r for g in groups for r in _scored(g.totals)]
    std = _std(every) if every else 0.0

    def formula(rewards: list[float]) -> list[float]:
        mean = _mean(rewards)
        return [(r - mean) / (std + eps) for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def leave_one_out(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """r - mean of the others = n/(n-1) (r - mean), an unbiased baseline; `eps` has no place in it.
    RLOO, arXiv 2402.14740."""

    def formula(rewards: list[float]) -> list[float]:
        mean, n = _mean(rewards), len(rewards)
        return [(r - mean) * n / (n - 1) for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def per_term(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """The group z-scores of each reward term, added up, over their population std in the whole step + eps.

    GDPO, arXiv 2601.05242, equations 4-6: a term tells episodes apart even where another one has a far wider spread, or
    where their sum is equal. Of a term's weight only the sign survives the z-score. The mean of the step, which the
    paper subtracts, is 0: that of every group is.
    """
    added = [_added_zscores(g, eps) for g in groups]
    every = [a for values in added for a in values if a is not None]
    scale = (_std(every) if every else 0.0) + eps
    return [[None if a is None else a and a / scale for a in values] for values in added]


def _added_zscores(group: GroupRewards, eps: float) -> list[float | None]:
    _scored(group.totals)
    if len(group.terms) != len(group.totals):
        raise ValueError(f"{len(group.totals)} rewards but {len(group.terms)} mappings of terms; one each is needed")
    names = dict.fromkeys(name for terms in group.terms for name in terms)
    scored = [None if r is None else terms for r, terms in zip(group.totals, group.terms, strict=True)]
    columns = [GroupRewards([None if t is None else t.get(name, 0.0) for t in scored]) for name in names]
    zscores = group_zscore(columns, eps=eps)
    return [None if t is None else math.fsum(z[i] or 0.0 for z in zscores) for i, t in enumerate(scored)]


def none(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """The reward itself, without a baseline: REINFORCE. Also for a group of one, or of equal rewards."""
    for g in groups:
        _scored(g.totals)
    return [list(g.totals) for g in groups]


ADVANTAGES: dict[str, Advantage] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "batch_zscore": batch_zscore,
    "leave_one_out": leave_one_out,
    "per_term": per_term,
    "none": none,
}
