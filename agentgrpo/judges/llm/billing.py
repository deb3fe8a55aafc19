"""What asking a model has cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgrpo.errors import ConfigError
from agentgrpo.judges.llm.completer import Completer, Reply
from agentgrpo.judges.llm.metered import MeteredCompleter
from agentgrpo.types import Message

COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost")

PROBE = (Message(role="user", content="Is 1 + 1 equal to 2? Reply yes or no."),)


class Billed:
    """A completer whose replies are counted: `counts` has COUNTS, of what was paid for. Prices are per 1,000 tokens."""

    def __init__(self, completer: Completer, *, prompt_price: float, completion_price: float, setting: str) -> None:
        """setting: the configuration's key of the part that has the prices. Raises ConfigError."""
        for name, price in {"prompt_price": prompt_price, "completion_price": completion_price}.items():
            if not (math.isfinite(price) and price >= 0):
                raise ConfigError(f"{setting}.{name}={price}; 0 or more is allowed")
        self.identity = completer.identity
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self._completer = completer
        self._prices = (prompt_price, completion_price)
        self._metered = completer if isinstance(completer, MeteredCompleter) else None
        if self._metered is not None:
            self._metered.at_prices(prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message]) -> Reply:
        reply = await self._completer.complete(messages)
        if reply.paid:
            prompt, completion = self._prices
            self.counts["calls"] += 1
            self.counts["prompt_tokens"] += reply.prompt_tokens
            self.counts["completion_tokens"] += reply.completion_tokens
            self.counts["cost"] += (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000
        return reply

    async def probe(self) -> None:
        """Ask a model behind an endpoint one small question, uncounted: does it reply at all? Raises JudgeError."""
        if getattr(self._completer, "is_remote", False):
            await (self._completer.complete(PROBE) if self._metered is None else self._metered.ask_directly(PROBE))

    async def close(self) -> None:
        await self._completer.close()
