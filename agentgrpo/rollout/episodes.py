"""One episode, and the one place where an infrastructure failure becomes data."""

from __future__ import annotations

from agentgrpo.agents.base import Agent
from agentgrpo.concurrency import time_limit
from agentgrpo.engines.base import SamplingParams
from agentgrpo.errors import EpisodeError
from agentgrpo.metering import asking_episode
from agentgrpo.types import Episode, Exit, Failure, Task


async def run_episode(
    agent: Agent,
    task: Task,
    *,
    sample_index: int,
    stream: str,
    sampling: SamplingParams,
    timeout_s: float | None = None,
    retries: int = 0,
) -> Episode:
    """One attempt at `task`; a retry keeps its seed, so a fault that passes leaves no trace in the result.

    An EpisodeError or the time limit ends as an Episode with `failure` set, which is never scored and never trained
    on. Any other exception is a bug in the program and is raised.
    """
    failure = Failure(kind="timeout", stage="episode", message="")
    for _ in range(retries + 1):
        try:
            async with time_limit(timeout_s):
                with asking_episode():
                    return await agent.run(task, sample_index=sample_index, stream=stream, sampling=sampling)
        except TimeoutError:
            failure = Failure(kind="timeout", stage="episode", message=f"not done after {timeout_s} s")
        except EpisodeError as e:
            failure = Failure(kind=e.kind, stage=type(e).__name__, message=str(e))
    return Episode(
        task=task,
        sample_index=sample_index,
        branches=(),
        answer=None,
        exit=Exit.TIMEOUT if failure.kind == "timeout" and failure.stage == "episode" else Exit.ERROR,
        metrics={},
        failure=failure,
    )
