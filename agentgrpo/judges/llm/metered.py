"""A model that judges or reads, behind the meter: its replies recorded or replayed, and within a budget.

What a call will cost in tokens is known only afterwards. Until then the most that it may cost is set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from agentgrpo.errors import ConfigError, JudgeError
from agentgrpo.judges.llm.completer import Completer, Reply
from agentgrpo.metering import Form, Meter
from agentgrpo.types import Message

TOKENS_PER_MESSAGE = 16
"""Around its text, for its role; of the text no token is less than a byte."""
MAX_TOKENS = 1024
"""Of a reply, for a completer that does not say (max_tokens)."""
UNBILLED = frozenset({"transport", "http_4xx", "http_429"})
"""Kinds of failure of a call that no model has answered; one that was too slow (timeout) may have been."""


class MeteredCompleter:
    """kind: judge, reader or validity, by which it is priced and limited. A reply that is replayed is not `paid`."""

    def __init__(self, part: Completer, *, kind: str, meter: Meter) -> None:
        self.identity = part.identity
        self.is_remote = getattr(part, "is_remote", False) and not meter.replays_only
        self._part, self._kind, self._meter = part, kind, meter
        self._max_tokens: int | None = getattr(part, "max_tokens", MAX_TOKENS)
        self._prices = (0.0, 0.0)
        self._form: Form[Reply] = Form(
            write=_row, read=lambda row: Reply(**row), error=JudgeError, unbilled=UNBILLED, cost=self._cost
        )

    def at_prices(self, prompt_price: float, completion_price: float) -> None:
        """Of 1,000 tokens; beside the price of a call. Raises ConfigError where no limit on money could be kept."""
        budget = self._meter.budget
        if completion_price and self._max_tokens is None and {budget.per_step.money, budget.per_run.money} != {None}:
            raise ConfigError(
                f"budget limits money, and a reply of the {self._kind} model may cost any amount: its request has no "
                "limit on tokens; give completer.max_tokens, or completer.extra.max_completion_tokens"
            )
        self._prices = (prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message]) -> Reply:
        """Raises JudgeError; BudgetSpent and CassetteMiss end the run."""
        texts = [[m.role, m.content] for m in messages]
        # The identity holds what goes out with every request: a schema of the reply is read as a prompt is.
        size = sum(len(m.content.encode("utf-8", "replace")) + TOKENS_PER_MESSAGE for m in messages)
        most = Reply(
            text="",
            prompt_tokens=size + len(self.identity.encode("utf-8", "replace")),
            completion_tokens=self._max_tokens or 0,
        )
        answer = await self._meter.ask(
            self._kind,
            {"service": self.identity, "messages": texts},
            lambda: self._part.complete(messages),
            self._form,
            estimate=self._cost(most),
        )
        return answer.value if answer.paid else replace(answer.value, paid=False)

    async def ask_directly(self, messages: Sequence[Message]) -> None:
        """Past cassette and budget: whether the model is there now. Nobody is asked where all is replayed."""
        if not self._meter.replays_only:
            await self._part.complete(messages)

    async def close(self) -> None:
        await self._part.close()

    def _cost(self, reply: Reply) -> float:
        prompt, completion = self._prices
        return (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000


def _row(reply: Reply) -> dict[str, Any]:
    return {key: value for key, value in asdict(reply).items() if key != "paid"}
