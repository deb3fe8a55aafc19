"""Credit by branch: the reward of each branch of each episode of a group -> an advantage for each of these branches.

A memory agent reads a task in chunks, each in a context of its own: a branch, rewarded for what it did itself and for
what came of all of it. Its baseline is a statistic of one instance's rewards r[i, t], of episode i in branch t, and
never of another's: tasks differ in how much can be earned at all, and in how many chunks they have.

    credit: branch     over rollouts x chunks, as Mem-alpha has it (arXiv 2509.25911)
    credit: position   over the rollouts at one chunk t, as many as got so far: each has a level and scale of its own

A of `Algorithm.advantage`, where R is all of r that the baseline is of:

    group_zscore    (r - mean R) / (population std R + eps)
    group_mean      r - mean R
    leave_one_out   r - mean of what of R the other episodes have: free of the episode's own luck, so unbiased
    none            r

batch_zscore and per_term are not among them: the scale of both is of all instances of the step.

A group whose episodes have the same rewards in every branch tells none of them from another: exact zeros, although its
branches differ and a pooled mean would push at those below it. So identical rollouts, all that a deterministic policy
can give, have no gradient; nor has an episode without another one, or a position that only one of them got to. Only
`none` has no baseline, so nothing to compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentgrpo.errors import TrainingError
from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards
from agentgrpo.types import is_degenerate_group

Branches: TypeAlias = tuple[float, ...]
"""One number for each branch of an episode."""
Group: TypeAlias = Sequence[Branches | None]
"""Of one group's episodes, in order; None = could not be scored."""
Credited: TypeAlias = Sequence[Branches]
"""Of the scored episodes of a group."""


def branch_advantages(
    groups: Sequence[Group], *, advantage: str, by_position: bool, eps: float = 1e-6
) -> list[list[Branches | None]]:
    """groups: the rewards of each episode's branches. One advantage for each of them; None where the episode is None.
    advantage: one of BRANCH_ADVANTAGES. Raises TrainingError for a reward that is not finite."""
    return [_of_group(group, advantage, by_position, eps) for group in groups]


def _of_group(group: Group, advantage: str, by_position: bool, eps: float) -> list[Branches | None]:
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
    return equally_long and all(is_degenerate_group(column) for column in zip(*scored, strict=True))


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
