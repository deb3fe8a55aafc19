"""Attempts by a scripted policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.rollout.loop import PolicyRunner
from tests.environments.program.played import END, RENDERER, SpellingEngine

__all__ = ["RENDERER", "attempt"]


async def attempt(environment: Any, task: Task, says: Sequence[str], *, sample_index: int = 0) -> Episode:
    engine = SpellingEngine([text + END for text in says])
    runner = PolicyRunner(environment=environment, engine=engine, renderer=RENDERER)
    sampling = SamplingParams(max_tokens=200)
    return await runner.run(task, sample_index=sample_index, stream="train/0", sampling=sampling)
