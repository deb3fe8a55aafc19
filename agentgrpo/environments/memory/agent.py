"""The memory agent: a Task in, an Episode out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.environments.base import Agent, Figures
from agentgrpo.environments.memory.attempt import Attempt
from agentgrpo.environments.memory.baselines import memory_baselines
from agentgrpo.environments.memory.metrics import MEMORY_FIGURES, NAMES
from agentgrpo.environments.memory.options import MemoryOptions, schema_of
from agentgrpo.retrieval.base import Probed


class MemoryAgent(MemoryOptions):
    """Reads a task's chunks one at a time, each in a context of its own with the memory so far, and changes the memory
    by calls; a reader then answers the task's questions from the memory alone. Implements environments.base.Agent.
    Holds no state between episodes, so one agent serves any number of them at once.

    Calls that are malformed, unknown, of wrong arguments or too many are the policy's own; a failing engine, reader or
    judge of what was written raises its EpisodeError.
    """

    figures: Figures = MEMORY_FIGURES
    metrics: frozenset[str] = NAMES
    """See environments.base.Counting."""
    budget = "memory_share"
    """See environments.base.Measured."""

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt; see environments.base.Agent. Raises DataError for a task without chunks or questions."""
        return await Attempt(self, task, sample_index=sample_index, stream=stream, sampling=sampling).run()

    def baselines(self, share: Mapping[str, float]) -> Mapping[str, Agent]:
        """See environments.base.Measured."""
        kind = next(iter(schema_of(self.schema).kinds))
        return memory_baselines(share, reader=self.reader, count_tokens=self.count_tokens, kind=kind)

    def counts(self) -> Mapping[str, float]:
        """See environments.base.Accounting: the accounts of the reader and, where it keeps one, of the judge of
        entries."""
        accounts = {"reader": self.reader.counts, "validity": getattr(self.validity, "counts", dict)}
        return {f"{part}/{name}": n for part, counts in accounts.items() for name, n in counts().items()}

    async def probe(self) -> None:
        """Raises ConfigError where the reader, or the judge of entries, asks a model that does not reply."""
        for part in (self.reader, self.validity):
            if isinstance(part, Probed):
                await part.probe()

    def on(self, engine: Engine) -> MemoryAgent:
        """See environments.base.Replayable."""
        return replace(self, engine=engine)

    async def close(self) -> None:
        """The agent is done for good: its reader and its judge may go."""
        try:
            await self.reader.close()
        finally:
            await self.validity.close()
