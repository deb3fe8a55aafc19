"""From episodes to scored groups, and which of them carry a signal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from agentgrpo.core.errors import TooManyFailures
from agentgrpo.core.types import EpisodeGroup, Failure, ScoredGroup, has_zero_variance
from agentgrpo.rewards.base import GroupReward


class Drop(StrEnum):
    """Why a group is not trained on, or may not be."""

    INFRASTRUCTURE = "infrastructure"
    """An episode of it could not be run or scored. The whole group goes: what is left of it is a biased sample."""
    ZERO_VARIANCE = "degenerate"  # the word in files and tags
    """All rewards are equal (with algorithm.credit=turn, branch or position those of each turn or branch): no episode
    is better than another. It stays, with advantage 0, unless it is replaced or algorithm.drop_zero_variance."""
    STALE = "stale"
    """A token of it was sampled from weights older than algorithm.max_staleness allows."""


async def score_groups(reward: GroupReward, groups: Sequence[EpisodeGroup]) -> list[ScoredGroup]:
    """Every group scored, in order; None where an episode could not be scored."""
    return list(await asyncio.gather(*(reward.score(group) for group in groups)))


def has_equal_totals(group: ScoredGroup) -> bool:
    return has_zero_variance([None if r is None else r.total for r in group.rewards])


def keep_trainable(
    scored: Sequence[ScoredGroup],
    *,
    oldest_version: int = 0,
    is_zero_variance: Callable[[ScoredGroup], bool] = has_equal_totals,
) -> tuple[list[ScoredGroup], list[Drop | None]]:
    """The groups to train on, and for every given group the reason why not (None = kept). Demonstrations need no
    reward. oldest_version: of the weights that may have sampled them. is_zero_variance: of groups whose rewards are
    all there."""
    reasons = [_reason_to_drop(group, oldest_version, is_zero_variance) for group in scored]
    return [g for g, reason in zip(scored, reasons, strict=True) if reason is None], reasons


def _reason_to_drop(
    group: ScoredGroup, oldest_version: int, is_zero_variance: Callable[[ScoredGroup], bool]
) -> Drop | None:
    if any(r is None and not e.is_demonstrated for r, e in zip(group.rewards, group.group.episodes, strict=True)):
        return Drop.INFRASTRUCTURE
    versions = [s.policy_version for e in group.group.episodes for b in e.branches for s in b.segments]
    if any(v is not None and v < oldest_version for v in versions):
        return Drop.STALE
    return Drop.ZERO_VARIANCE if is_zero_variance(group) else None


def episode_failures(scored: Sequence[ScoredGroup]) -> list[Failure]:
    """Every infrastructure failure of a step: the episode's own, or its judge's."""
    found = []
    for group in scored:
        judged = group.failures or (None,) * len(group.rewards)
        found += [e.failure or f for e, f in zip(group.group.episodes, judged, strict=True) if e.failure or f]
    return [f for f in found if f is not None]


def refuse_failures(scored: Sequence[ScoredGroup], *, max_error_fraction: float) -> None:
    """Raise TooManyFailures, quoting the first one, when more than the allowed share of episodes failed."""
    failures = episode_failures(scored)
    total = sum(len(g.rewards) for g in scored)
    if failures and len(failures) > max_error_fraction * total:
        raise TooManyFailures(
            f"{_counted(failures, total)}; at most {max_error_fraction:.0%} are allowed (run.max_error_fraction). The "
            f"first one: {failures[0].message}"
        )


def new_failures(scored: Sequence[ScoredGroup], told: set[str]) -> list[str]:
    """A line where an episode failed in a way (Failure.kind) that is not among `told`, to which it is added."""
    failures = episode_failures(scored)
    first = next((f for f in failures if f.kind not in told), None)
    if first is None:
        return []
    told.update(f.kind for f in failures)
    total = sum(len(g.rewards) for g in scored)
    return [f"{_counted(failures, total)}; their groups are left out. The first one: {first.message}"]


def _counted(failures: Sequence[Failure], total: int) -> str:
    kinds = ", ".join(f"{kind}: {n}" for kind, n in sorted(Counter(f.kind for f in failures).items()))
    return f"{len(failures)} of {total} episodes failed for infrastructure reasons ({kinds})"
