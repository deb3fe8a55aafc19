"""Score groups of episodes, and select the groups that carry a signal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from agentgrpo.core.errors import TooManyFailures
from agentgrpo.core.types import Episode, EpisodeGroup, Failure, RewardResult, ScoredGroup, has_zero_variance
from agentgrpo.rewards.base import GroupReward


class Drop(StrEnum):
    """Why a group is not trained on, or might not be."""

    INFRASTRUCTURE = "infrastructure"
    """An episode of the group could not be run or scored. The whole group is dropped, because the remaining episodes
    are a biased sample."""
    ZERO_VARIANCE = "degenerate"  # the name used in files and tags
    """The rewards are all equal (with algorithm.credit=turn, branch or position: those of each turn or branch), so no
    episode is better than another. The group stays, with advantage 0, unless it is replaced or
    algorithm.drop_zero_variance is set."""
    STALE = "stale"
    """A token of the group was sampled from weights older than algorithm.max_staleness allows."""


async def score_groups(reward: GroupReward, groups: Sequence[EpisodeGroup]) -> list[ScoredGroup]:
    """Score every group, in order; a reward is None if its episode could not be scored."""
    return list(await asyncio.gather(*(reward.score(group) for group in groups)))


def score_with(reward: Callable[[Episode], float], groups: Sequence[EpisodeGroup]) -> list[ScoredGroup]:
    """Score every episode with a function; a reward is None if the episode's infrastructure failed."""

    def scored(episode: Episode) -> RewardResult | None:
        if episode.failure is not None:
            return None
        total = float(reward(episode))
        return RewardResult(total=total, terms={"reward": total}, dimensions={}, correctness=0.0)

    return [ScoredGroup(group=group, rewards=tuple(map(scored, group.episodes))) for group in groups]


def has_equal_totals(group: ScoredGroup) -> bool:
    return has_zero_variance([None if r is None else r.total for r in group.rewards])


def keep_trainable(
    scored: Sequence[ScoredGroup],
    *,
    oldest_version: int = 0,
    is_zero_variance: Callable[[ScoredGroup], bool] = has_equal_totals,
) -> tuple[list[ScoredGroup], list[Drop | None]]:
    """Return the groups to train on, and for every given group the reason for dropping it (None = kept). Demonstrations
    need no reward. oldest_version: the oldest policy version that may have sampled a group. is_zero_variance: called
    only for groups whose rewards are complete."""
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
    """Return every infrastructure failure of a step: of the episode itself or of its judge."""
    found = []
    for group in scored:
        judged = group.failures or (None,) * len(group.rewards)
        found += [e.failure or f for e, f in zip(group.group.episodes, judged, strict=True) if e.failure or f]
    return [f for f in found if f is not None]


def refuse_failures(scored: Sequence[ScoredGroup], *, max_error_fraction: float) -> None:
    """Raise TooManyFailures, quoting the first failure, if more than the allowed share of episodes failed."""
    failures = episode_failures(scored)
    total = sum(len(g.rewards) for g in scored)
    if failures and len(failures) > max_error_fraction * total:
        raise TooManyFailures(
            f"{_counted(failures, total)}; at most {max_error_fraction:.0%} are allowed (run.max_error_fraction). The "
            f"first one: {failures[0].message}"
        )


def new_failures(scored: Sequence[ScoredGroup], told: set[str]) -> list[str]:
    """Return one line if an episode failed in a way (Failure.kind) that is not yet in `told`; the new kinds are added
    to `told`."""
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
