"""Run all episodes of a step concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentgrpo.core.concurrency import time_limit
from agentgrpo.core.errors import EpisodeError, text_of
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Failure, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.services.asking import asking_episode

# --- One episode. This is the only place where an infrastructure failure is turned into data.


async def run_episode(
    runner: Runner,
    task: Task,
    *,
    sample_index: int,
    stream: str,
    sampling: SamplingParams,
    timeout_s: float | None = None,
    retries: int = 0,
) -> Episode:
    """Run one attempt at `task`. A retry keeps the seed and gets a new environment, so a transient fault leaves no
    trace in the result.

    An EpisodeError or a timeout yields an Episode with `failure` set, which is never scored and never trained on. Any
    other exception is a bug in the program and is raised.
    """
    failure = Failure(kind="timeout", stage="episode", message="")
    for attempt in range(retries + 1):
        try:
            async with time_limit(timeout_s):
                with asking_episode():
                    return await runner.run(
                        task.apart(), sample_index=sample_index, stream=stream, sampling=sampling, attempt=attempt
                    )
        except TimeoutError as e:
            where = "".join(f"; {note}" for note in getattr(e.__context__, "__notes__", ()))
            failure = Failure(kind="timeout", stage="episode", message=f"not done after {timeout_s} s{where}")
        except EpisodeError as e:
            failure = Failure(kind=e.kind, stage=type(e).__name__, message=text_of(e))
    return Episode(
        task=task,
        sample_index=sample_index,
        branches=(),
        answer=None,
        exit=Exit.TIMEOUT if failure.kind == "timeout" and failure.stage == "episode" else Exit.ERROR,
        metrics={},
        failure=failure,
    )


async def run_groups(
    runner: Runner,
    tasks: Sequence[Task],
    *,
    group_size: int | Callable[[Task], int],
    stream: str,
    sampling: SamplingParams,
    max_concurrent_episodes: int = 256,
    episode_timeout_s: float | None = None,
    episode_retries: int = 0,
    on_episode: Callable[[], object] = lambda: None,
) -> list[EpisodeGroup]:
    """Run `group_size` episodes of every task; groups and episodes keep the order given. on_episode: called after each
    episode.

    If cancelled or failed, it returns only after every episode has stopped, so that nothing keeps sampling in the
    background.
    """
    room = asyncio.Semaphore(max_concurrent_episodes)
    sizes = [group_size if isinstance(group_size, int) else group_size(task) for task in tasks]

    async def one(task: Task, sample_index: int) -> Episode:
        async with room:
            episode = await run_episode(
                runner,
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
                [running.create_task(one(task, i), name=f"episode {task.id}/{i}") for i in range(size)]
                for task, size in zip(tasks, sizes, strict=True)
            ]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [
        EpisodeGroup(task=task, episodes=tuple(episode.result() for episode in group))
        for task, group in zip(tasks, groups, strict=True)
    ]
