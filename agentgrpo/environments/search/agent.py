"""The search agent: a Task in, an Episode out."""

from __future__ import annotations

from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Figures
from agentgrpo.environments.search.attempt import Attempt
from agentgrpo.environments.search.metrics import SEARCH_FIGURES, episode_metrics
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.environments.search.state import SearchState


class SearchAgent(SearchOptions):
    """Searches, reads, cites and answers within limits; implements environments.base.Agent. Holds no state between
    episodes, so one agent serves any number of them at once.

    Searching too much, answering too early and writing no action are the policy's own and end up in the Episode. A
    failing engine, vdb retriever, reranker or evidence judge raises its EpisodeError; a failing web retriever is served
    by vdb and counted. A page that cannot be fetched is told to the policy.
    """

    @property
    def figures(self) -> Figures:
        return SEARCH_FIGURES

    @property
    def metrics(self) -> frozenset[str]:
        """See environments.base.Counting."""
        return frozenset(episode_metrics(SearchState(question=""), exit=Exit.NO_ACTION, limit=1, answered=False))

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt; see environments.base.Agent. Releases its engine context however it ends."""
        return await Attempt(self, task, sample_index=sample_index, stream=stream, sampling=sampling).run()
