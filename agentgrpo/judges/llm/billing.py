"""What asking a model has cost."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.judges.llm.completer import Completer, Reply
from agentgrpo.types import Message

COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost")


class Billed:
    """A completer whose replies are counted: `counts` has COUNTS. Prices are per 1,000 tokens."""

    def __init__(self, completer: Completer, *, prompt_price: float, completion_price: float) -> None:
        self.identity = completer.identity
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self._completer = completer
        self._prices = (prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message]) -> Reply:
        reply = await self._completer.complete(messages)
        prompt, completion = self._prices
        self.counts["calls"] += 1
        self.counts["prompt_tokens"] += reply.prompt_tokens
        self.counts["completion_tokens"] += reply.completion_tokens
        self.counts["cost"] += (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000
        return reply

    async def close(self) -> None:
        await self._completer.close()
