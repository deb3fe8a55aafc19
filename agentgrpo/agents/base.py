"""What an agent is: the loop that turns a Task into an Episode."""

from __future__ import annotations

from typing import Protocol

from agentgrpo.engines.base import SamplingParams
from agentgrpo.types import Episode, Task


class Agent(Protocol):
    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt. `stream` and `sample_index` seed it (engines.base.SeedKey); `sampling.stop` is the agent's own
        business and is overridden. The policy's mistakes end up in the Episode; an infrastructure failure raises an
        EpisodeError, which `rollout.episodes` captures. Must release its engine context however it ends."""
        ...
