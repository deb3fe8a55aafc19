"""The tool agent: a Task in, an Episode out."""

from __future__ import annotations

from agentgrpo.agents.tool.attempt import Attempt
from agentgrpo.agents.tool.metrics import episode_metrics
from agentgrpo.agents.tool.options import ToolOptions
from agentgrpo.agents.tool.state import ToolState
from agentgrpo.engines.base import SamplingParams
from agentgrpo.types import Episode, Exit, Task


class ToolAgent(ToolOptions):
    """Calls tools and answers within limits, in whatever format its renderer speaks; implements agents.base.Agent.
    Holds no state between episodes, so one agent serves any number of them at once.

    Malformed calls, unknown tools, wrong arguments and turns without an action are the policy's own, and are told to
    it; so are a tool's timeouts and errors. A failing engine or a tool whose infrastructure fails raises its
    EpisodeError.
    """

    @property
    def metrics(self) -> frozenset[str]:
        """See agents.base.Counting."""
        return frozenset(episode_metrics(ToolState(), exit=Exit.NO_ACTION, tools=self.toolbox.names))

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt; see agents.base.Agent. However it ends, its workspace is removed, its engine context released
        and none of its calls runs on."""
        return await Attempt(self, task, sample_index=sample_index, stream=stream, sampling=sampling).run()
