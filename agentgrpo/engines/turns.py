"""One `generate` call on its way through the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agentgrpo.engines.base import Completion, SeedKey
from agentgrpo.engines.contexts import Context
from agentgrpo.engines.sampling import Distribution, Noise
from agentgrpo.engines.stops import StopRule
from agentgrpo.errors import EngineError
from agentgrpo.types import FinishReason


@dataclass(slots=True, eq=False)
class Turn:
    """tokens = the context, then what was sampled."""

    key: SeedKey
    tokens: list[int]
    max_total: int
    """Tokens at which the turn ends in any case."""
    distribution: Distribution
    noise: Noise
    stop: StopRule
    future: asyncio.Future[Completion]
    queued_at: float
    num_given: int
    opening: int = 0
    """Tokens that other episodes' contexts open with too."""
    started_at: float | None = None
    logprobs: list[float] = field(default_factory=list)
    context: Context = field(init=False)
    """Given when the turn is scheduled."""
    settled_before: int = 0
    """Tokens settled before the turn: where its context returns to if the turn does not end well."""

    def take(self, token: int, logprob: float) -> FinishReason | None:
        """Add one sampled token; says how the turn ended, if it did."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stop.ends(self.tokens, self.num_given):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.max_total else None

    def finish(self, reason: FinishReason, policy_version: int, now: float) -> None:
        started_at = self.queued_at if self.started_at is None else self.started_at
        if not self.future.done():
            self.future.set_result(
                Completion(
                    token_ids=tuple(self.tokens[self.num_given :]),
                    logprobs=tuple(self.logprobs),
                    finish_reason=reason,
                    policy_version=policy_version,
                    time_queue=started_at - self.queued_at,
                    time_generate=now - started_at,
                )
            )

    def fail(self, error: EngineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
