"""A model that judges or reads, behind the meter: its replies recorded or replayed, and within a budget.

What a call will cost in tokens is known only afterwards. Until then the most that it may cost is set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from agentgrpo.errors import JudgeError
from agentgrpo.judges.llm.completer import Completer, Reply
from agentgrpo.metering import Form, Meter
from agentgrpo.types import Message

BYTES_PER_TOKEN = 3
"""For the most tokens that a prompt may come to."""
MAX_TOKENS = 1024
"""Of a reply, for a completer that does not say (max_tokens)."""


class MeteredCompleter:
    """kind: judge, reader or validity, by which it is priced and limited. A reply that is replayed is not `paid`."""

    def __init__(self, part: Completer, *, kind: str, meter: Meter) -> None:
        self.identity = part.identity
        self.is_remote = getattr(part, "is_remote", False) and not meter.replays_only
        self._part, self._kind, self._meter = part, kind, meter
        self._max_tokens = int(getattr(part, "max_tokens", MAX_TOKENS))
        self._prices = (0.0, 0.0)
        self._form: Form[Reply] = Form(write=_row, read=lambda row: Reply(**row), error=JudgeError, cost=self._cost)

    def at_prices(self, prompt_price: float, completion_price: float) -> None:
        """Of 1,000 tokens; beside the price of a call."""
        self._prices = (prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message]) -> Reply:
        """Raises JudgeError; BudgetSpent and CassetteMiss end the run."""
        texts = [[m.role, m.content] for m in messages]
        size = sum(len(m.content.encode("utf-8", "replace")) for m in messages)
        most = Reply(text="", prompt_tokens=size // BYTES_PER_TOKEN + 1, completion_tokens=self._max_tokens)
        answer = await self._meter.ask(
            self._kind,
            {"service": self.identity, "messages": texts},
            lambda: self._part.complete(messages),
            self._form,
            estimate=self._cost(most),
        )
        return answer.value if answer.paid else replace(answer.value, paid=False)

    async def close(self) -> None:
        await self._part.close()

    def _cost(self, reply: Reply) -> float:
        prompt, completion = self._prices
        return (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000


def _row(reply: Reply) -> dict[str, Any]:
    return {key: value for key, value in asdict(reply).items() if key != "paid"}
