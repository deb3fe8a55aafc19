"""An engine that records its requests and completions, for comparison with an agent's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.core.types import Episode
from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey


@dataclass(frozen=True, slots=True)
class Said:
    """One call of `generate`."""

    context: tuple[int, ...]
    sampling: SamplingParams
    completion: Completion


class RecordingEngine:
    """Wraps an Engine and records the samples of the last attempt at each episode."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.trainable, self.max_context = engine.trainable, engine.max_context
        self._said: dict[tuple[str, str, int], list[Said]] = {}
        self._over: set[tuple[str, str, int]] = set()

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        context = tuple(token_ids)
        completion = await self._engine.generate(token_ids, sampling, key)
        if key.episode in self._over:  # the previous attempt failed
            self._over.discard(key.episode)
            self._said.pop(key.episode, None)
        self._said.setdefault(key.episode, []).append(Said(context, sampling, completion))
        return completion

    def release(self, key: SeedKey) -> None:
        self._over.add(key.episode)
        self._engine.release(key)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return await self._engine.score(token_ids)

    async def load_weights(self, policy_version: int) -> None:
        await self._engine.load_weights(policy_version)

    async def close(self) -> None:
        await self._engine.close()

    def said_in(self, episode: Episode, stream: str) -> Sequence[Said]:
        """The engine calls sampled for the episode, in order."""
        return self._said.get((stream, episode.task.id, episode.sample_index), [])
