"""An engine that says what a script tells it: the shipped fake behind the same seam, for tests and demonstrations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.spoken import end_of, room_for
from agentgrpo.errors import EngineError, boundary
from agentgrpo.types import FinishReason


class ScriptedEngine:
    """script(key, context text) gives a turn's text. Log-probs are 0.0: the script is certain of what it says. Not
    trainable, as no policy sampled these tokens."""

    trainable = False

    def __init__(
        self,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        script: Callable[[SeedKey, str], str],
        max_context: int = 4096,
    ) -> None:
        self.max_context = max_context
        self.policy_version = 0
        self._encode, self._decode, self._script = encode, decode, script

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        """The script's text up to the token that completes a stop string or is a stop token; the end of the text is a
        stop too. Cut by max_tokens and max_context (LENGTH) as a policy would be."""
        room = room_for(token_ids, sampling, self.max_context)
        await asyncio.sleep(0)
        with boundary(EngineError, "script"):
            tokens = tuple(self._encode(self._script(key, self._decode(token_ids))))
            tokens = tokens[: end_of(tokens, sampling, self._decode)]
        return Completion(
            token_ids=tokens[:room],
            logprobs=(0.0,) * len(tokens[:room]),
            finish_reason=FinishReason.LENGTH if len(tokens) > room else FinishReason.STOP,
            policy_version=self.policy_version,
        )

    def release(self, key: SeedKey) -> None:
        """Nothing is kept."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0] * (len(token_ids) - 1)

    async def load_weights(self, policy_version: int) -> None:
        self.policy_version = policy_version

    async def close(self) -> None:
        """Nothing is open."""
