"""All episodes of a step, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentgrpo.agents.base import Agent
from agentgrpo.engines.base import SamplingParams
from agentgrpo.rollout.episodes import run_episode
from agentgrpo.types import Episode, EpisodeGroup, Task


async def run_groups(
    agent: Agent,
    tasks: Sequence[Task],
    *,
    group_size: int,
    stream: str,
    sampling: SamplingParams,
    max_concurrent_episodes: int = 256,
    episode_timeout_s: float | None = None,
    episode_retries: int = 0,
    on_episode: Callable[[], object] = lambda: None,
) -> list[EpisodeGroup]:
    """`group_size` episodes of every task, groups and episodes in the order given. on_episode: called when one is over.

    Cancelled or failed, it returns only when every episode has stopped: nothing goes on sampling behind the caller.
    """
    room = asyncio.Semaphore(max_concurrent_episodes)

    async def one(task: Task, sample_index: int) -> Episode:
        async with room:
            episode = await run_episode(
                agent,
                task,
                sample_index=sample_index,
                stream=stream,
                sampling=sampling,
                timeout_s=episode_timeout_s,
                retries=episode_retries,
            )
        on_episode()
        return episode

    try:
        async with asyncio.TaskGroup() as running:
            groups = [
                [running.create_task(one(task, i), name=f"episode {task.id}/{i}") for i in range(group_size)]
                for task in tasks
            ]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [
        EpisodeGroup(task=task, episodes=tuple(episode.result() for episode in group))
        for task, group in zip(tasks, groups, strict=True)
    ]
