"""The tokens of one context that only grows: an episode's, or one of several.

    open(P0)  sample() -> A0  tell(E0)  sample() -> A1  ...        context = P0 + A0 + E0 + A1

It alone turns messages into tokens. What the engine samples becomes a sampled segment with its log-probabilities,
everything else one of environment tokens; the context is their concatenation and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from agentgrpo.core.errors import EngineError, boundary
from agentgrpo.core.messages import ToolReply, ToolSpec
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Branch, FinishReason, Message, Piece, Segment
from agentgrpo.engines.base import Engine, SamplingParams, SeedKey
from agentgrpo.environments.base import Turn
from agentgrpo.environments.factory import Attempt, TurnLimits
from agentgrpo.renderers.base import Renderer, ToolRenderer


class Conversation:
    """Made for one context of an attempt, which becomes a Branch."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        attempt: Attempt,
        sampling: SamplingParams,
        limits: TurnLimits,
        *,
        first_turn: int = 0,
    ) -> None:
        """first_turn: how many turns of the episode were sampled in contexts before this one."""
        self._engine, self._renderer, self._attempt = engine, renderer, attempt
        self._sampling, self._limits = sampling, limits
        held = engine.max_context
        self._max_context = held if limits.max_context is None else min(limits.max_context, held)
        self._has_tools = self._is_released = False
        self._context: list[int] = []
        self._segments: list[Segment] = []
        self.turn = first_turn - 1
        """Of the episode, the one sampled last, from 0; -1 before the first."""
        self.seconds = {"time_generate": 0.0, "time_queue": 0.0}

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self._max_context - len(self._context)

    @property
    def branch(self) -> Branch:
        return Branch(segments=tuple(self._segments))

    def open(
        self, messages: Sequence[Message | ToolReply], tools: Sequence[ToolSpec] | None, *, shared: int = 0
    ) -> None:
        """What the policy sees before its first turn. tools: None = turns are plain text. shared: tokens that other
        contexts open with too. Raises ConfigError where the renderer cannot write it."""
        opening = [message for message in messages if isinstance(message, Message)]
        self._has_tools = tools is not None
        if tools is None:
            token_ids, stop = self._renderer.open(opening), self._limits.stop
        else:
            renderer = cast(ToolRenderer, self._renderer)
            token_ids, stop = renderer.open_with_tools(opening, tools), tuple(renderer.stop_strings)
        ends = tuple(self._renderer.stop_token_ids)
        self._sampling = replace(self._sampling, stop=stop, stop_token_ids=ends, opening=shared)
        self._append(Segment(role="user", token_ids=tuple(token_ids), sampled=False, text=self._text(token_ids)))

    async def sample(self) -> Turn | None:
        """The policy's next turn, cut short where the context ends; None where there is no room for one. Raises
        EngineError."""
        if self.room < self._limits.min_context_left:
            return None
        self.turn += 1
        sampling = self._sampling
        if self.room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=self.room)
        with boundary(EngineError, "engine"), calling(Stage.GENERATION):
            completion = await self._engine.generate(tuple(self._context), sampling, self._seed_key())
        self.seconds["time_queue"] += completion.time_queue
        self.seconds["time_generate"] += completion.time_generate
        text = self._text(completion.token_ids)
        self._append(
            Segment(
                role="assistant",
                token_ids=completion.token_ids,
                sampled=True,
                logprobs=completion.logprobs,
                policy_version=completion.policy_version,
                text=text,
                cut_short=completion.finish_reason is FinishReason.LENGTH,
            )
        )
        ended = completion.token_ids[-1:] and completion.token_ids[-1] in self._renderer.stop_token_ids
        turn = Turn(
            index=self.turn,
            text=text,
            token_ids=completion.token_ids,
            content=self._text(completion.token_ids[:-1]) if ended else text,
            finish_reason=completion.finish_reason,
        )
        if not self._has_tools:
            return turn
        parsed = cast(ToolRenderer, self._renderer).parse(completion.token_ids)
        return replace(
            turn, content=parsed.content, reasoning=parsed.reasoning, calls=parsed.calls, answer=parsed.answer
        )

    def tell(self, messages: Sequence[Message | ToolReply]) -> int:
        """Append what the environment says, each message by itself but for neighbouring replies, as long as there is
        room for it and for one more token; how many messages were appended. What does not fit is dropped whole."""
        told = 0
        for is_reply, group in groupby(messages, key=lambda message: isinstance(message, ToolReply)):
            for together in [list(group)] if is_reply else [[message] for message in group]:
                token_ids = self._rendered(together)
                if len(token_ids) >= self.room:
                    return told
                self._append(Segment(role="tool", token_ids=token_ids, sampled=False, text=self._text(token_ids)))
                told += len(together)
        return told

    def release(self) -> None:
        """No turn follows, however it ended: the engine may forget the attempt."""
        if not self._is_released:
            self._is_released = True
            self._engine.release(self._seed_key())

    def _rendered(self, messages: Sequence[Message | ToolReply]) -> tuple[int, ...]:
        sampled = next((s.token_ids for s in reversed(self._segments) if s.sampled), ())
        match messages[0]:
            case Message() as message:
                pieces = message.pieces or (Piece(message.content, False),)
                return tuple(self._renderer.tell(pieces, sampled=sampled))
            case ToolReply():
                replies = cast(Sequence[ToolReply], messages)
                return tuple(cast(ToolRenderer, self._renderer).reply(replies, sampled=sampled))

    def _append(self, segment: Segment) -> None:
        self._context.extend(segment.token_ids)
        self._segments.append(segment)

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._renderer.decode(token_ids)

    def _seed_key(self) -> SeedKey:
        of = self._attempt
        return SeedKey(of.stream, of.task.id, of.sample_index, max(self.turn, 0))
