"""Advantages: the rewards of a step's groups -> the credit of each of their episodes.

None = an episode that could not be scored: it stays None and takes no part in the statistics. `accepted` gives None to
others too: an episode without an advantage is not trained on. A group with fewer than
two scored rewards, or whose scored rewards all lie within 1e-9, carries no information: exact zeros, so that rounding
noise is never divided by a tiny spread. Sums are exact (`math.fsum`): the order within a group changes no bit.

A new advantage is one function and one line of ADVANTAGES.
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
    """None = could not be scored."""
    terms: Sequence[Mapping[str, float]] = ()
    """What each total is made of, by name; what an episode does not name is 0. Only `per_term` reads it."""
    grades: Sequence[float | None] = ()
    """The judge's, of the answers. Only `accepted` reads it."""


class Advantage(Protocol):
    def __call__(self, groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
        """For each group one advantage per episode, in order; None = it is not trained on. Raises TrainingError for a
        reward that is not finite."""
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
    values = iter([0.0] * len(scored) if has_zero_variance(rewards) else formula(scored))
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


def max_rl(groups: Sequence[GroupRewards], *, eps: float = 1e-6) -> list[list[float | None]]:
    """(r - mean) / (mean + eps), both of the group: a success weighs the more the rarer it is, n - 1 where it is the
    only one of n. MaxRL, arXiv 2602.02710: with rewards of 0 and 1 it is an unbiased gradient of the log-likelihood of
    success, to the order of the group's size.

    Rewards below 0, which the paper has none of, may bring the mean to 0 and below: it divides as if it were that of a
    group with the best reward alone, best / n, at least. A group without a reward above 0 has no success: zeros."""

    def formula(rewards: list[float]) -> list[float]:
        mean, least = _mean(rewards), max(rewards) / len(rewards)
        return [(r - mean) / (max(mean, least) + eps) if least > 0 else 0.0 for r in rewards]

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


def accepted(
    groups: Sequence[GroupRewards],
    *,
    eps: float = 1e-6,
    by: Literal["reward", "grade"] = "reward",
    least: Annotated[float, Finite] | None = None,
) -> list[list[float | None]]:
    """1 for an episode that is accepted, None for one that is not: it is left out, and in no denominator.

    by="reward" accepts the best of a group, several where they are equally good, and none of a group of equal rewards.
    RAFT, arXiv 2304.06767. by="grade" accepts those that the judge grades best, whatever they have cost: every right
    episode, of a group of right ones all, of a group of wrong ones (grade 0) none. Rejection sampling, arXiv
    2308.01825. With `least` all that have at least that are accepted, whatever their group.
    With loss=reinforce it is supervised training on what was accepted; `eps` has no place in it."""
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


# --- Credit by branch: the reward of each branch of each episode of a group -> an advantage for each of these branches.
#
# A memory agent reads a task in chunks, each in a context of its own: a branch, rewarded for what it did itself and for
# what came of all of it. Its baseline is a statistic of one instance's rewards r[i, t], of episode i in branch t, and
# never of another's: tasks differ in how much can be earned at all, and in how many chunks they have.
#
#     credit: branch     over rollouts x chunks, as Mem-alpha has it (arXiv 2509.25911)
#     credit: position   over the rollouts at one chunk t, as many as got so far: each has a level and scale of its own
#
# A of `Algorithm.advantage`, where R is all of r that the baseline is of:
#
#     group_zscore    (r - mean R) / (population std R + eps)
#     group_mean      r - mean R
#     leave_one_out   r - mean of what of R the other episodes have: free of the episode's own luck, so unbiased
#     none            r
#
# batch_zscore and per_term are not among them: the scale of both is of all instances of the step.
#
# A group whose episodes have the same rewards in every branch tells none of them from another: exact zeros, although
# its
# branches differ and a pooled mean would push at those below it. So identical rollouts, all that a deterministic policy
# can give, have no gradient; nor has an episode without another one, or a position that only one of them got to. Only
# `none` has no baseline, so nothing to compare.

Branches: TypeAlias = tuple[float, ...]
"""One number for each branch of an episode."""
BranchGroup: TypeAlias = Sequence[Branches | None]
"""Of one group's episodes, in order; None = could not be scored."""
Credited: TypeAlias = Sequence[Branches]
"""Of the scored episodes of a group."""


def branch_advantages(
    groups: Sequence[BranchGroup], *, advantage: str, by_position: bool, eps: float = 1e-6
) -> list[list[Branches | None]]:
    """groups: the rewards of each episode's branches. One advantage for each of them; None where the episode is None.
    advantage: one of BRANCH_ADVANTAGES. Raises TrainingError for a reward that is not finite."""
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
    """Whether all episodes have the same branches, reward by reward, or there is but one."""
    equally_long = len({len(e) for e in scored}) <= 1
    return equally_long and all(has_zero_variance(column) for column in zip(*scored, strict=True))


def _by_position(scored: Credited, advantage: str, eps: float) -> Credited:
    longest = max(map(len, scored), default=0)
    columns = [iter(_plain([e[t] for e in scored if t < len(e)], advantage, eps)) for t in range(longest)]
    return [tuple(next(column) for column in columns[: len(e)]) for e in scored]


def _plain(rewards: Sequence[float], advantage: str, eps: float) -> Sequence[float]:
    """As if each were the reward of an episode."""
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
"""The advantages that there are by branch and by position."""


# --- Credit by turn: what each turn of each episode of a group brought -> an advantage for each of these turns.
#
# A turn cannot change what earlier ones brought: of the rewards r the policy gradient needs only the return-to-go
#
#     G[i, k] = r[i, k] + r[i, k+1] + ...        of turn k of episode i        (Sutton et al., 2000, theorem 1)
#
# and may take off it a baseline that does not depend on what episode i does from turn k on. Here that is a statistic of
# the other episodes' returns-to-go of turn k or, where one has ended before, of its last turn: no turn is without a
# baseline, however few get there. A[i, k] of `Algorithm.advantage`:
#
#     leave_one_out   G - mean of the others                                                       unbiased
#     none            G                                                                            unbiased
#     group_mean      G - mean of all, the episode itself included                                 (n - 1) / n of that
#     group_zscore    the same / (the root of the mean square of the group's numerators + eps)     biased
#     batch_zscore    the same / (population std of all returns-to-go of the step + eps)           biased
#
# Of episodes of one turn each is what grpo.advantages gives. One scale serves all turns of a group: a scale for each
# turn
# would blow up those whose returns hardly differ, and that of the totals may be 0 where turns differ. Returns-to-go by
# turn and their z-scores: MT-GRPO, arXiv 2505.11821 (there a scale for each turn); GiGPO, arXiv 2505.10978 (there a
# group for each state that recurs, not for each turn).
#
# The gradient is unbiased only where the aggregation does not weigh an episode by its own length: constant,
# sequence_sum.

Turns: TypeAlias = tuple[float, ...]
"""One number for each sampled turn of an episode."""
TurnGroup: TypeAlias = Sequence[Turns | None]
"""Of one group's episodes, in order; None = could not be scored."""
Column: TypeAlias = Sequence[float]
"""The returns-to-go of one turn, of every episode of a group that has turns."""


def returns_to_go(rewards: Sequence[float]) -> Turns:
    """[turns] -> [turns]; each exactly rounded."""
    return tuple(math.fsum(rewards[turn:]) for turn in range(len(rewards)))


def turn_advantages(groups: Sequence[TurnGroup], *, advantage: str, eps: float = 1e-6) -> list[list[Turns | None]]:
    """groups: what each turn brought. One advantage for each of them; None where the episode is None.

    A turn whose returns-to-go lie within 1e-9 tells no episode from another: exact zeros. Raises TrainingError for a
    reward that is not finite.
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
    """`formula` of each turn's column, put back in its place."""
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
"""The advantages that there are by turn."""


def _turn_flat(group: TurnGroup) -> list[float]:
    return [value for e in group if e is not None for value in e]


def _turn_scaled(group: TurnGroup, scale: float) -> list[Turns | None]:
    return [None if e is None else tuple(value / scale for value in e) for e in group]


def _mean_or_zero(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(_mean_or_zero([v**2 for v in values]))
