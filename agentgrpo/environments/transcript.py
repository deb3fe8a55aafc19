"""The tokens of one context that only grows, shared by every kind of agent: an episode's, or one of several.

    open(P0)  sample() -> A0  observe(E0)  sample() -> A1  ...        context = P0 + A0 + E0 + A1

What the engine samples becomes a sampled segment with its log-probabilities, everything else an injected one; the
context is their concatenation and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from agentgrpo.core.errors import EngineError, boundary
from agentgrpo.core.types import Branch, FinishReason, Segment, Task
from agentgrpo.engines.base import Engine, SamplingParams, SeedKey

T = TypeVar("T")


class Transcript:
    """Made for one context. `turn` is that of the episode that was sampled last, from 0; -1 before the first."""

    def __init__(
        self,
        *,
        engine: Engine,
        decode: Callable[[Sequence[int]], str],
        task: Task,
        sample_index: int,
        stream: str,
        sampling: SamplingParams,
        max_context: int | None = None,
        first_turn: int = 0,
    ) -> None:
        """`sampling` with the stops of the agent in it. max_context: tokens of the context; null = what the engine
        holds, which is the limit in any case. first_turn: how many turns of the episode were sampled in contexts
        before this one."""
        self._engine, self._decode, self._sampling = engine, decode, sampling
        self._task_id, self._sample_index, self._stream = task.id, sample_index, stream
        self._max_context = engine.max_context if max_context is None else min(max_context, engine.max_context)
        self._context: list[int] = []
        self._segments: list[Segment] = []
        self.turn = first_turn - 1
        self.timings = {"time_generate": 0.0, "time_tools": 0.0, "time_queue": 0.0}

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self._max_context - len(self._context)

    @property
    def sampled(self) -> tuple[int, ...]:
        """The policy's last turn; empty before the first."""
        return next((s.token_ids for s in reversed(self._segments) if s.sampled), ())

    @property
    def branch(self) -> Branch:
        return Branch(segments=tuple(self._segments))

    def open(self, token_ids: Sequence[int]) -> None:
        """What the policy sees before its first turn."""
        self._context.extend(token_ids)
        self._segments.append(
            Segment(role="user", token_ids=tuple(token_ids), sampled=False, text=self._decode(token_ids))
        )

    async def sample(self, *, at_least: int = 1) -> Segment | None:
        """The policy's next turn, cut short where the context ends; None where fewer than `at_least` tokens are left.
        Raises EngineError."""
        if self.room < at_least:
            return None
        self.turn += 1
        sampling = self._sampling
        if self.room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=self.room)
        with boundary(EngineError, "engine"):
            completion = await self._engine.generate(tuple(self._context), sampling, self._seed_key())
        self.timings["time_queue"] += completion.time_queue
        self.timings["time_generate"] += completion.time_generate
        self._context.extend(completion.token_ids)
        segment = Segment(
            role="assistant",
            token_ids=completion.token_ids,
            sampled=True,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
            text=self._decode(completion.token_ids),
            cut_short=completion.finish_reason is FinishReason.LENGTH,
        )
        self._segments.append(segment)
        return segment

    def observe(self, token_ids: Sequence[int], text: str) -> bool:
        """Append what the environment says, if there is room for it and for one more token; whether there was. `text`
        is for readers. What does not fit is dropped whole."""
        if len(token_ids) >= self.room:
            return False
        self._context.extend(token_ids)
        self._segments.append(Segment(role="tool", token_ids=tuple(token_ids), sampled=False, text=text))
        return True

    async def timed(self, work: Awaitable[T]) -> T:
        """`work`, its seconds counted as time_tools."""
        began = time.perf_counter()
        try:
            return await work
        finally:
            self.timings["time_tools"] += time.perf_counter() - began

    def release(self) -> None:
        """The episode is over, however it ended: the engine may forget it."""
        self._engine.release(self._seed_key())

    def _seed_key(self) -> SeedKey:
        return SeedKey(self._stream, self._task_id, self._sample_index, max(self.turn, 0))
