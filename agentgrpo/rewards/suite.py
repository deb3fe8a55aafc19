"""The reward of a suite: each task is scored by the reward of its member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentgrpo.core.types import EpisodeGroup, ScoredGroup
from agentgrpo.rewards.base import GroupReward
from agentgrpo.tasks.suite import member_of


class SuiteReward:
    """Implements rewards.base.GroupReward."""

    def __init__(self, members: Mapping[str, GroupReward]) -> None:
        self._members = members

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        return await self._members[member_of(group.task)].score(group)

    def judge_counts(self) -> Mapping[str, float]:
        """The judges' counts, summed over all members."""
        total: Counter[str] = Counter()
        for reward in self._members.values():
            total.update(reward.judge_counts())
        return dict(total)
