"""From episodes to scored groups, and which of them carry a signal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from agentgrpo.errors import TooManyFailures
from agentgrpo.rewards.reward import Reward
from agentgrpo.types import EpisodeGroup, Failure, ScoredGroup, is_degenerate_group


class Drop(StrEnum):
    """Why a group is not trained on."""

    INFRASTRUCTURE = "infrastructure"
    """An episode of it could not be run or scored. The whole group goes: what is left of it is a biased sample."""
    DEGENERATE = "degenerate"
    """All rewards are equal: no episode is better than another."""


async def score_groups(reward: Reward, groups: Sequence[EpisodeGroup]) -> list[ScoredGroup]:
    """Every group scored, in order; None where an episode could not be scored."""
    return list(await asyncio.gather(*(reward.score(group) for group in groups)))


def keep_informative(scored: Sequence[ScoredGroup]) -> tuple[list[ScoredGroup], list[Drop | None]]:
    """The groups to train on, and for every given group the reason why not (None = kept)."""
    reasons: list[Drop | None] = []
    for group in scored:
        if any(r is None for r in group.rewards):
            reasons.append(Drop.INFRASTRUCTURE)
        elif is_degenerate_group([None if r is None else r.total for r in group.rewards]):
            reasons.append(Drop.DEGENERATE)
        else:
            reasons.append(None)
    return [g for g, reason in zip(scored, reasons, strict=True) if reason is None], reasons


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
        kinds = ", ".join(f"{kind}: {n}" for kind, n in sorted(Counter(f.kind for f in failures).items()))
        raise TooManyFailures(
            f"{len(failures)} of {total} episodes failed for infrastructure reasons ({kinds}); at most "
            f"{max_error_fraction:.0%} are allowed (run.max_error_fraction). The first one: {failures[0].message}"
        )
