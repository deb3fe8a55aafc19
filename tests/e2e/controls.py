"""Parts that must not lead to success: named on the command line by the negative controls, as a user's own code is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from agentgrpo.core.types import EpisodeGroup, Outcome, Passage, ScoredGroup, Task
from agentgrpo.judges.base import AnswerJudge, Grade
from agentgrpo.retrieval.base import Retriever
from agentgrpo.rewards.base import RewardTerm
from agentgrpo.rewards.reward import Reward
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.files import Files
from agentgrpo.tools.python import PythonTool


def _draw(*key: object) -> int:
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "big")


class ShuffledReward(Reward):
    """Every reward goes to some other episode of its group."""

    def __init__(
        self,
        *,
        judge: AnswerJudge,
        terms: Mapping[str, RewardTerm],
        mode: str = "shaped",
        reward_scale: float = 1.0,
        cost_when_wrong: float = 1.0,
        correct_threshold: float = 1.0,
    ) -> None:
        super().__init__(
            judge=judge,
            terms=terms,
            mode=mode,
            reward_scale=reward_scale,
            cost_when_wrong=cost_when_wrong,
            correct_threshold=correct_threshold,
        )

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        scored = await super().score(group)
        if len(scored.rewards) < 2:
            return scored  # an evaluation: its figures are the true ones
        order = sorted(range(len(scored.rewards)), key=lambda i: _draw(group.task.id, group.episodes[0].branches, i))
        return replace(scored, rewards=tuple(scored.rewards[i] for i in order))


class NegatedReward(ShuffledReward):
    """Every reward with the other sign, and one more: what is right is unlearnt. `max_rl` learns nothing from a group
    without a reward above 0."""

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        scored = await Reward.score(self, group)
        if len(scored.rewards) < 2:
            return scored
        return replace(scored, rewards=tuple(r and replace(r, total=1.0 - r.total) for r in scored.rewards))


class ForeignReward(ShuffledReward):
    """Every group gets the rewards of the group before it: those of another task."""

    _before: ScoredGroup | None = None

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        scored = await Reward.score(self, group)
        if len(scored.rewards) < 2:
            return scored
        before, self._before = self._before or scored, scored
        return replace(scored, rewards=before.rewards)


class ConstantJudge:
    """Likes every answer."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return [Grade(score=1.0) for _ in answers]


class SlowRetriever:
    """Some passages of the corpus, whatever is asked, and takes its time."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        await asyncio.sleep(0.3)
        return [self._passages[_draw(query, i) % len(self._passages)] for i in range(top_k)]

    async def close(self) -> None:
        self._passages = ()


def slow_retrievers(
    *, corpora: Mapping[str, Sequence[Passage]], mode: str, dim: int, stemmer: str, cache_size: int
) -> dict[str, Retriever]:
    return {name: SlowRetriever(passages) for name, passages in corpora.items()}


class RandomNumbers:
    """A tool that succeeds where the real one does, with other numbers."""

    def __init__(self, tool: Tool) -> None:
        self.spec, self._tool = tool.spec, tool

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        result = await self._tool.call(arguments, workspace)
        if result.outcome is not Outcome.SUCCESS:
            return result
        other = re.sub(r"\d+", lambda n: str(11 + _draw(workspace.seed, arguments, n.start()) % 89), result.text)
        return replace(result, text=other)

    async def close(self) -> None:
        await self._tool.close()


class RandomTools:
    """Toolset: all tools of the workshop, lying."""

    def __init__(self) -> None:
        real: list[Tool] = [Calculator(), PythonTool(), *Files(offered=("lookup", "read_file"), max_lines=3).tools]
        self.tools = tuple(RandomNumbers(tool) for tool in real)

    async def close(self) -> None:
        for tool in self.tools:
            await tool.close()
