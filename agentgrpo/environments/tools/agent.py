"""The tool agent: a Task in, an Episode out."""

from __future__ import annotations

from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.tools.attempt import Attempt
from agentgrpo.environments.tools.options import ToolOptions
from agentgrpo.environments.tools.state import ToolState, episode_metrics


class ToolAgent(ToolOptions):
    """Calls tools and answers within limits, in whatever format its renderer speaks; implements
    environments.base.Agent. Holds no state between episodes, so one agent serves any number of them at once.

    Malformed calls, unknown tools, wrong arguments and turns without an action are the policy's own, and are told to
    it; so are a tool's timeouts and errors. A failing engine or a tool whose infrastructure fails raises its
    EpisodeError.
    """

    @property
    def metrics(self) -> frozenset[str]:
        """See environments.base.Counting."""
        return frozenset(episode_metrics(ToolState(), exit=Exit.NO_ACTION, tools=self.toolbox.names))

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt; see environments.base.Agent. However it ends, its workspace is removed, its engine context
        released and none of its calls runs on."""
        return await Attempt(self, task, sample_index=sample_index, stream=stream, sampling=sampling).run()
