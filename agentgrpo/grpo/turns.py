"""Credit by turn: what each turn of each episode of a group brought -> an advantage for each of these turns.

A turn cannot change what earlier ones brought: of the rewards r the policy gradient needs only the return-to-go

    G[i, k] = r[i, k] + r[i, k+1] + ...        of turn k of episode i        (Sutton et al., 2000, theorem 1)

and may take off it a baseline that does not depend on what episode i does from turn k on. Here that is a statistic of
the other episodes' returns-to-go of turn k or, where one has ended before, of its last turn: no turn is without a
baseline, however few get there. A[i, k] of `Algorithm.advantage`:

    leave_one_out   G - mean of the others                                                       unbiased
    none            G                                                                            unbiased
    group_mean      G - mean of all, the episode itself included                                 (n - 1) / n of that
    group_zscore    the same / (the root of the mean square of the group's numerators + eps)     biased
    batch_zscore    the same / (population std of all returns-to-go of the step + eps)           biased

Of episodes of one turn each is what grpo.advantages gives. One scale serves all turns of a group: a scale for each turn
would blow up those whose returns hardly differ, and that of the totals may be 0 where turns differ. Returns-to-go by
turn and their z-scores: MT-GRPO, arXiv 2505.11821 (there a scale for each turn); GiGPO, arXiv 2505.10978 (there a group
for each state that recurs, not for each turn).

The gradient is unbiased only where the aggregation does not weigh an episode by its own length: constant, sequence_sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentgrpo.errors import TrainingError
from agentgrpo.types import is_degenerate_group

Turns: TypeAlias = tuple[float, ...]
"""One number for each sampled turn of an episode."""
Group: TypeAlias = Sequence[Turns | None]
"""Of one group's episodes, in order; None = could not be scored."""
Column: TypeAlias = Sequence[float]
"""The returns-to-go of one turn, of every episode of a group that has turns."""


def returns_to_go(rewards: Sequence[float]) -> Turns:
    """[turns] -> [turns]; each exactly rounded."""
    return tuple(math.fsum(rewards[turn:]) for turn in range(len(rewards)))


def turn_advantages(groups: Sequence[Group], *, advantage: str, eps: float = 1e-6) -> list[list[Turns | None]]:
    """groups: what each turn brought. One advantage for each of them; None where the episode is None.

    A turn whose returns-to-go lie within 1e-9 tells no episode from another: exact zeros. Raises TrainingError for a
    reward that is not finite.
    """
    returns = [[None if e is None else _returns(e) for e in group] for group in groups]
    centred = [_by_turn(group, _CENTRED[advantage]) for group in returns]
    if advantage == "group_zscore":
        return [_scaled(group, _root_mean_square(_flat(group)) + eps) for group in centred]
    if advantage == "batch_zscore":
        every = [g for group in returns for g in _flat(group)]
        mean = _mean(every)
        scale = _root_mean_square([g - mean for g in every]) + eps
        return [_scaled(group, scale) for group in centred]
    return centred


def _returns(rewards: Turns) -> Turns:
    if not all(map(math.isfinite, rewards)):
        raise TrainingError(f"rewards of turns {list(rewards)}: only finite ones are allowed")
    return returns_to_go(rewards)


def _by_turn(returns: Group, formula: Callable[[Column], Column]) -> list[Turns | None]:
    """`formula` of each turn's column, put back in its place."""
    found = [e for e in returns if e]
    longest = max(map(len, found), default=0)
    columns = [formula([e[min(turn, len(e) - 1)] for e in found]) for turn in range(longest)]
    rows = iter(zip(*columns, strict=True))
    return [None if e is None else next(rows)[: len(e)] if e else () for e in returns]


def _less_others(column: Column) -> Column:
    n = len(column)
    return [c * n / (n - 1) for c in _less_mean(column)] if n > 1 else [0.0]


def _less_mean(column: Column) -> Column:
    if is_degenerate_group(column):
        return [0.0] * len(column)
    mean = _mean(column)
    return [g - mean for g in column]


def _as_it_is(column: Column) -> Column:
    return column


_CENTRED: dict[str, Callable[[Column], Column]] = {
    "leave_one_out": _less_others,
    "none": _as_it_is,
    "group_mean": _less_mean,
    "group_zscore": _less_mean,
    "batch_zscore": _less_mean,
}
TURN_ADVANTAGES = tuple(_CENTRED)
"""The advantages that there are by turn."""


def _flat(group: Group) -> list[float]:
    return [value for e in group if e is not None for value in e]


def _scaled(group: Group, scale: float) -> list[Turns | None]:
    return [None if e is None else tuple(value / scale for value in e) for e in group]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(_mean([v**2 for v in values]))
