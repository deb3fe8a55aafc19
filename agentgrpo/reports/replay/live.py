"""Replay with the real environment: prompts, tools, retrievers, reader, judge and reward as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.types import Episode, EpisodeGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.records.screen import Bar
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.comparing import compare_episode
from agentgrpo.reports.replay.divergence import Decode, Divergence, around
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rollout.groups import run_episode


class Live:
    """tolerance: maximum difference of log-probs."""

    def __init__(
        self,
        runner: Runner,
        reward: GroupReward,
        tasks: Sequence[Task],
        *,
        tolerance: float,
        stream: str,
        sampling: SamplingParams,
        rollout: RolloutSettings,
        decode: Decode,
        bar: Bar,
    ) -> None:
        """tasks: the split from which the episodes came."""
        self._runner, self._reward, self._tasks = runner, reward, {task.id: task for task in tasks}
        self._tolerance, self._decode, self._bar = tolerance, decode, bar
        self._stream, self._sampling, self._rollout = stream, sampling, rollout
        self._room = asyncio.Semaphore(rollout.max_concurrent_episodes)
        self._done = 0

    async def replay(self, records: Sequence[TrajectoryRecord]) -> list[Divergence | None]:
        """The first divergence of each record, in order. Records of one task are scored together, as in the run."""
        groups = [list(group) for _, group in groupby(records, key=lambda record: record.task)]
        try:
            async with asyncio.TaskGroup() as running:
                tasks = [running.create_task(self._group(group, len(records))) for group in groups]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [difference for task in tasks for difference in task.result()]

    async def _group(self, records: Sequence[TrajectoryRecord], total: int) -> list[Divergence | None]:
        task = self._tasks.get(records[0].task)
        if task is None:
            return [_without_task(record) for record in records]
        episodes = await asyncio.gather(*(self._episode(task, record, total) for record in records))
        scored = await self._reward.score(EpisodeGroup(task=task, episodes=tuple(episodes)))
        return [
            compare_episode(record, episode, reward, tolerance=self._tolerance, decode=self._decode)
            for record, episode, reward in zip(records, episodes, scored.rewards, strict=True)
        ]

    async def _episode(self, task: Task, record: TrajectoryRecord, total: int) -> Episode:
        async with self._room:
            episode = await run_episode(
                self._runner,
                task,
                sample_index=record.sample_index,
                stream=self._stream,
                sampling=self._sampling,
                timeout_s=self._rollout.episode_timeout_s,
                retries=self._rollout.episode_retries,
            )
        self._done += 1
        self._bar.reached("replaying", self._done, self._done, total)
        return episode


def _without_task(record: TrajectoryRecord) -> Divergence:
    question = next((m["content"] for m in reversed(record.prompt_messages) if m["role"] == "user"), "")
    return Divergence(
        episode=record.id,
        kind="prompt",
        character=0,
        expected_text=around(question, 0),
        found_text="",
        found=f"the data has no task {record.task} any more",
    )
