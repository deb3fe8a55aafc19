"""Advantages: the rewards of a step's groups -> the credit of each episode.

An episode that could not be scored is None: it stays None and takes no part in the statistics. `accepted` returns None
for rejected episodes too; an episode without an advantage is not trained on. A group carries no information if it has
fewer than two scored rewards, or if all its scored rewards lie within 1e-9. Such a group gets exact zeros, so that
rounding noise is never divided by a tiny spread. Sums are exact (`math.fsum`), so the order within a group does not
change a single bit.

To add an advantage, write one function and add one line to ADVANTAGES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

from agentgrpo.config.values import Finite
from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import CONSTANT_WITHIN, has_zero_variance


class GroupRewards(NamedTuple):
    """The rewards of one group's episodes, in order."""

    totals: Sequence[float | None]
    """Total reward of each episode; None = could not be scored."""
    terms: Sequence[Mapping[str, float]] = ()
    """The terms of each total, by name; a missing term counts as 0. Only `per_term` reads them."""
    grades: Sequence[float | None] = ()
    """The judge's grades of the answers. Only `accepted` reads them."""


class Advantage(Protocol):
    def __call__(self, groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
        """Return one advantage per episode for each group, in order; None = not trained on. Raises TrainingError for a
        reward that is not finite."""
        ...


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """Return the population standard deviation."""
    mean = _mean(values)
    return math.sqrt(_mean([(x - mean) ** 2 for x in values]))


def _scored(rewards: Sequence[float | None]) -> list[float]:
    scored = [r for r in rewards if r is not None]
    if not all(map(math.isfinite, scored)):
        raise TrainingError(f"rewards {list(rewards)}: only finite rewards are allowed; None marks an unscored one")
    return scored


def _informative(rewards: Sequence[float | None], formula: Callable[[list[float]], list[float]]) -> list[float | None]:
    """Apply `formula` to the scored rewards of a group. Return zeros if they carry no information, and None wherever
    the reward is None."""
    scored = _scored(rewards)
    values = iter([0.0] * len(scored) if has_zero_variance(rewards) else formula(scored))
    return [None if r is None else next(values) for r in rewards]


def group_zscore(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """(r - mean) / (population std + eps), both over the group. GRPO, arXiv 2402.03300, equation 3 and below."""

    def formula(rewards: list[float]) -> list[float]:
        mean, std = _mean(rewards), _std(rewards)
        return [(r - mean) / (std + eps) for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def group_mean(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """r - mean of the group; `eps` is not used. Dr. GRPO, arXiv 2503.20783: dividing by a std would weigh questions
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
    """r - mean of the other rewards = n/(n-1) (r - mean), an unbiased baseline; `eps` is not used. RLOO, arXiv
    2402.14740."""

    def formula(rewards: list[float]) -> list[float]:
        mean, n = _mean(rewards), len(rewards)
        return [(r - mean) * n / (n - 1) for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def max_rl(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """(r - mean) / (mean + eps), both over the group: a success weighs more the rarer it is, n - 1 if it is the only
    one of n. MaxRL, arXiv 2602.02710: with rewards of 0 and 1 it is an unbiased gradient of the log-likelihood of
    success, up to the order of the group size.

    The paper has no negative rewards. With negative rewards the mean may be 0 or less, so the divisor is at least best
    / n: the mean of a group whose other rewards are 0. A group without a positive reward has no success and gets
    zeros."""

    def formula(rewards: list[float]) -> list[float]:
        mean, least = _mean(rewards), max(rewards) / len(rewards)
        return [(r - mean) / (max(mean, least) + eps) if least > 0 else 0.0 for r in rewards]

    return [_informative(g.totals, formula) for g in groups]


def per_term(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """The sum of the group z-scores of each reward term, divided by (population std of these sums over the step + eps).

    GDPO, arXiv 2601.05242, equations 4-6: a term distinguishes episodes even if another term has a far wider spread, or
    if their totals are equal. Only the sign of a term's weight survives the z-score. The paper also subtracts the mean
    over the step; that mean is 0, because every group has mean 0.
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
    """The reward itself, without a baseline: REINFORCE. Also applies to a group of one or a group of equal rewards."""
    for g in groups:
        _scored(g.totals)
    return [list(g.totals) for g in groups]


def accepted(
    groups: Sequence[GroupRewards],
    *,
    eps: float = 1e-6,
    by: Literal["reward", "grade"] = "reward",
    least: Annotated[float, Finite] | None = None,
) -> list[list[float | None]]:
    """1 for an accepted episode and None for a rejected one, which is left out and counts in no denominator.

    by="reward" accepts the best episodes of a group: all that share the best reward, but no episode if all rewards are
    equal. RAFT, arXiv 2304.06767. by="grade" accepts the episodes with the judge's best grade, whatever their cost:
    every right episode of a group, and no episode of a group whose grades are all 0. Rejection sampling, arXiv
    2308.01825. With `least`, every episode with at least this value is accepted, independent of its group.
    With loss=reinforce this is supervised training on the accepted episodes; `eps` is not used."""
    return [[1.0 if is_accepted else None for is_accepted in _accepts(g, by, least)] for g in groups]


def _accepts(group: GroupRewards, by: str, least: float | None) -> list[bool]:
    values = group.grades if by == "grade" else group.totals
    scored = _scored(values)
    if least is None and by == "grade":
        best = max(scored, default=0.0)
        least = best - CONSTANT_WITHIN if best > 0 else math.inf
    elif least is None:
        least = math.inf if has_zero_variance(values) else max(scored) - CONSTANT_WITHIN
    return [x is not None and x >= least for x in values]


ADVANTAGES: dict[str, Advantage] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "batch_zscore": batch_zscore,
    "leave_one_out": leave_one_out,
    "max_rl": max_rl,
    "per_term": per_term,
    "none": none,
    "accepted": accepted,
}


# --- Credit by branch: the reward of each branch of each episode of a group -> one advantage per branch.
#
# A memory agent reads a task in chunks, each in a separate context, called a branch. A branch is rewarded for its own
# work and for the outcome of the episode. The baseline uses the rewards r[i, t] (episode i, branch t) of one task
# instance only, because tasks differ in their attainable reward and in their number of chunks.
#
#     credit: branch     over rollouts x chunks, as in Mem-alpha (arXiv 2509.25911)
#     credit: position   over the rollouts that reached chunk t: each chunk has its own level and scale
#
# The advantage A by `Algorithm.advantage`; R is the set of rewards r that the baseline is computed from:
#
#     group_zscore    (r - mean R) / (population std R + eps)
#     group_mean      r - mean R
#     leave_one_out   r - mean of the rewards in R of the other episodes: independent of the episode itself, so unbiased
#     none            r
#
# batch_zscore and per_term are not supported, because their scale is computed over all instances of the step.
#
# If all episodes of a group have the same rewards in every branch, no episode is better than another: they get exact
# zeros, although their branches differ and a pooled mean would push down the branches below it. So identical rollouts,
# as a deterministic policy produces, have no gradient. A single episode has no gradient either, nor has a position that
# only one episode reached. Only `none` has no baseline and skips this comparison.

Branches: TypeAlias = tuple[float, ...]
"""One number per branch of an episode."""
BranchGroup: TypeAlias = Sequence[Branches | None]
"""One entry per episode of a group, in order; None = could not be scored."""
Credited: TypeAlias = Sequence[Branches]
"""One entry per scored episode of a group."""


def branch_advantages(
    groups: Sequence[BranchGroup], *, advantage: str, by_position: bool, eps: float = 1e-6
) -> list[list[Branches | None]]:
    """Return one advantage per branch, and None for each unscored episode. groups: the rewards of each episode's
    branches. advantage: one of BRANCH_ADVANTAGES. Raises TrainingError for a reward that is not finite."""
    return [_of_group(group, advantage, by_position, eps) for group in groups]


def _of_group(group: BranchGroup, advantage: str, by_position: bool, eps: float) -> list[Branches | None]:
    scored = [e for e in group if e is not None]
    if not all(math.isfinite(r) for e in scored for r in e):
        raise TrainingError(f"rewards of branches {scored}: only finite ones are allowed")
    if advantage == "none":
        return list(group)
    if by_position:
        credited = _by_position(scored, advantage, eps)
    elif _tells_nothing(scored):
        credited = [(0.0,) * len(e) for e in scored]
    else:
        credited = _POOLED[advantage](scored, eps)
    found = iter(credited)
    return [None if e is None else next(found) for e in group]


def _tells_nothing(scored: Credited) -> bool:
    """Return whether all episodes have equal rewards branch by branch, or there is only one episode."""
    equally_long = len({len(e) for e in scored}) <= 1
    return equally_long and all(has_zero_variance(column) for column in zip(*scored, strict=True))


def _by_position(scored: Credited, advantage: str, eps: float) -> Credited:
    longest = max(map(len, scored), default=0)
    columns = [iter(_plain([e[t] for e in scored if t < len(e)], advantage, eps)) for t in range(longest)]
    return [tuple(next(column) for column in columns[: len(e)]) for e in scored]


def _plain(rewards: Sequence[float], advantage: str, eps: float) -> Sequence[float]:
    """Compute the advantages as if each reward were the reward of an episode."""
    [values] = ADVANTAGES[advantage]([GroupRewards(rewards)], eps=eps)
    return [v for v in values if v is not None]


def _pooled(advantage: str) -> Callable[[Credited, float], Credited]:
    def credit(scored: Credited, eps: float) -> Credited:
        values = iter(_plain([r for e in scored for r in e], advantage, eps))
        return [tuple(next(values) for _ in e) for e in scored]

    return credit


def _less_others(scored: Credited, eps: float) -> Credited:
    credited = []
    for i, episode in enumerate(scored):
        others = [r for j, other in enumerate(scored) if j != i for r in other]
        baseline = math.fsum(others) / max(1, len(others))
        credited.append(tuple(r - baseline if others else 0.0 for r in episode))
    return credited


_POOLED: dict[str, Callable[[Credited, float], Credited]] = {
    "group_zscore": _pooled("group_zscore"),
    "group_mean": _pooled("group_mean"),
    "leave_one_out": _less_others,
}
BRANCH_ADVANTAGES = (*_POOLED, "none")
"""The advantages available by branch and by position."""


# --- Credit by turn: the reward of each turn of each episode of a group -> one advantage per turn.
#
# A turn cannot change earlier rewards, so the policy gradient needs only the return-to-go of the rewards r:
#
#     G[i, k] = r[i, k] + r[i, k+1] + ...        of turn k of episode i        (Sutton et al., 2000, theorem 1)
#
# A baseline may be subtracted if it does not depend on episode i from turn k on. This baseline is a statistic of the
# other episodes' returns-to-go at turn k or, if an episode has ended earlier, at its last turn. So every turn has a
# baseline, however few episodes reach it. A[i, k] by `Algorithm.advantage`:
#
#     leave_one_out   G - mean of the others                                                       unbiased
#     none            G                                                                            unbiased
#     group_mean      G - mean of all, including the episode itself                 (n - 1) / n times leave_one_out
#     group_zscore    group_mean / (root mean square of the group's numerators + eps)              biased
#     batch_zscore    group_mean / (population std of all returns-to-go of the step + eps)         biased
#
# For episodes with one turn each, these equal the advantages by episode. The turns of a group share one scale: a scale
# per turn would inflate turns whose returns hardly differ, and the scale of the totals may be 0 although turns differ.
# Returns-to-go by turn and their z-scores: MT-GRPO, arXiv 2505.11821 (which has one scale per turn); GiGPO, arXiv
# 2505.10978 (which groups by recurring state, not by turn).
#
# The gradient is unbiased only if the aggregation does not weigh an episode by its own length: constant, sequence_sum.

Turns: TypeAlias = tuple[float, ...]
"""One number per sampled turn of an episode."""
TurnGroup: TypeAlias = Sequence[Turns | None]
"""One entry per episode of a group, in order; None = could not be scored."""
Column: TypeAlias = Sequence[float]
"""The returns-to-go of one turn, for every episode of a group that has turns."""


def returns_to_go(rewards: Sequence[float]) -> Turns:
    """[turns] -> [turns]; each value is exactly rounded."""
    return tuple(math.fsum(rewards[turn:]) for turn in range(len(rewards)))


def turn_advantages(groups: Sequence[TurnGroup], *, advantage: str, eps: float = 1e-6) -> list[list[Turns | None]]:
    """Return one advantage per turn, and None for each unscored episode. groups: the reward of each turn.

    A turn whose returns-to-go all lie within 1e-9 does not distinguish the episodes and gets exact zeros. Raises
    TrainingError for a reward that is not finite.
    """
    returns = [[None if e is None else _returns(e) for e in group] for group in groups]
    centred = [_by_turn(group, _CENTRED[advantage]) for group in returns]
    if advantage == "group_zscore":
        return [_turn_scaled(group, _root_mean_square(_turn_flat(group)) + eps) for group in centred]
    if advantage == "batch_zscore":
        every = [g for group in returns for g in _turn_flat(group)]
        mean = _mean_or_zero(every)
        scale = _root_mean_square([g - mean for g in every]) + eps
        return [_turn_scaled(group, scale) for group in centred]
    return centred


def _returns(rewards: Turns) -> Turns:
    if not all(map(math.isfinite, rewards)):
        raise TrainingError(f"rewards of turns {list(rewards)}: only finite ones are allowed")
    return returns_to_go(rewards)


def _by_turn(returns: TurnGroup, formula: Callable[[Column], Column]) -> list[Turns | None]:
    """Apply `formula` to the column of each turn and return the values by episode."""
    found = [e for e in returns if e]
    longest = max(map(len, found), default=0)
    columns = [formula([e[min(turn, len(e) - 1)] for e in found]) for turn in range(longest)]
    rows = iter(zip(*columns, strict=True))
    return [None if e is None else next(rows)[: len(e)] if e else () for e in returns]


def _turn_less_others(column: Column) -> Column:
    n = len(column)
    return [c * n / (n - 1) for c in _turn_less_mean(column)] if n > 1 else [0.0]


def _turn_less_mean(column: Column) -> Column:
    if has_zero_variance(column):
        return [0.0] * len(column)
    mean = _mean_or_zero(column)
    return [g - mean for g in column]


def _as_it_is(column: Column) -> Column:
    return column


_CENTRED: dict[str, Callable[[Column], Column]] = {
    "leave_one_out": _turn_less_others,
    "none": _as_it_is,
    "group_mean": _turn_less_mean,
    "group_zscore": _turn_less_mean,
    "batch_zscore": _turn_less_mean,
}
TURN_ADVANTAGES = tuple(_CENTRED)
"""The advantages available by turn."""


def _turn_flat(group: TurnGroup) -> list[float]:
    return [value for e in group if e is not None for value in e]


def _turn_scaled(group: TurnGroup, scale: float) -> list[Turns | None]:
    return [None if e is None else tuple(value / scale for value in e) for e in group]


def _mean_or_zero(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(_mean_or_zero([v**2 for v in values]))
