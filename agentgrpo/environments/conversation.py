"""The tokens of one growing context: an episode's only context, or one of several.

    open(P0)  sample() -> A0  tell(E0)  sample() -> A1  ...        context = P0 + A0 + E0 + A1

Only this module turns messages into tokens. A turn from the engine becomes a sampled segment with its
log-probabilities; everything else becomes a segment of environment tokens. The context is exactly the concatenation of
its segments.

An environment that is driven by a program (Driven) opens as many conversations as it needs, side by side.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol, cast, runtime_checkable

from agentgrpo.core.errors import DataError, EngineError, boundary
from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Branch, Episode, FinishReason, Message, Piece, Role, Segment, Task, ToolCall
from agentgrpo.engines.base import Engine, SamplingParams, SeedKey
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, TurnLimits
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.renderers.form import TurnForm, grammar_of

_NOT_SAMPLED: Mapping[str, Any] = {"sampled": False, "logprobs": None, "policy_version": None, "grammar": ""}
"""The fields of a segment that was sampled in another context."""


class Conversation:
    """One context of an attempt; it becomes a Branch."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        attempt: Attempt,
        sampling: SamplingParams,
        limits: TurnLimits,
    ) -> None:
        """Contexts of one attempt that are open at once need separate streams (Attempt.stream)."""
        self._engine, self._renderer, self._attempt = engine, renderer, attempt
        self._sampling, self._limits = sampling, limits
        held = engine.max_context
        self.max_context = held if limits.max_context is None else min(limits.max_context, held)
        self._has_tools = self._is_released = False
        self._context: list[int] = []
        self._segments: list[Segment] = []
        self._turns: dict[int, int] = {}
        """Number of a turn in the episode -> index of its segment."""
        self.turn = -1
        """Number in the episode of the turn sampled last, from 0; -1 before the first."""
        self.is_trained = True
        """Whether its sampled turns are trained; otherwise they are recorded and have no gradient."""
        self.seconds = {"time_generate": 0.0, "time_queue": 0.0}

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.max_context - len(self._context)

    @property
    def num_tokens(self) -> int:
        return len(self._context)

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    @property
    def num_turns(self) -> int:
        """Number of turns sampled in this context."""
        return sum(segment.sampled for segment in self._segments)

    @property
    def sampled_turns(self) -> list[int]:
        """Numbers in the episode of the turns sampled in this context, in order."""
        return [turn for turn, place in sorted(self._turns.items()) if self._segments[place].sampled]

    @property
    def branch(self) -> Branch:
        if self.is_trained:
            return Branch(segments=tuple(self._segments))
        return Branch(segments=tuple(replace(s, masked=s.sampled) for s in self._segments))

    def may_hold(self, num_characters: int) -> bool:
        """Whether a text of this length may fit. If False, any text of this length takes more tokens than there is room
        for, and is never tokenized."""
        return num_characters <= self.room * self._renderer.longest_token

    def open(
        self, messages: Sequence[Message | ToolReply], tools: Sequence[ToolSpec] | None, *, shared: int = 0
    ) -> bool:
        """Append the messages before the policy's first turn. tools: None = turns are plain text. shared: number of
        opening tokens shared with other contexts. Returns False, and appends nothing, if there is no room. Raises
        ConfigError if the renderer cannot write the opening."""
        opening = [message for message in messages if isinstance(message, Message)]
        if not self.may_hold(size_of(opening)):
            return False
        self._has_tools = tools is not None
        if tools is None:
            token_ids, stop = self._renderer.open(opening), self._limits.stop
        else:
            renderer = cast(ToolRenderer, self._renderer)
            token_ids, stop = renderer.open_with_tools(opening, tools), tuple(renderer.stop_strings)
        if len(token_ids) > self.room:
            return False
        ends = tuple(self._renderer.stop_token_ids)
        self._sampling = replace(self._sampling, stop=stop, stop_token_ids=ends, opening=shared)
        self._append(Segment(role="user", token_ids=tuple(token_ids), sampled=False, text=self._text(token_ids)))
        return True

    async def sample(
        self,
        *,
        number: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        form: TurnForm | None = None,
    ) -> Turn | None:
        """Sample the policy's next turn; the end of the context cuts it short. Return None if the context has no room
        for a turn. number: the turn's number in the episode, from 0; None = it follows the last turn sampled here.
        max_tokens: a further limit on the turn's tokens. stop: strings that end the turn, in addition to the
        renderer's; a call that is cut off by one of them does not count. form: the form that the turn is held to; a
        limit of tokens may still cut it short. Raises EngineError, and ConfigError if the renderer cannot write the
        form. After an error or a cancellation the conversation is unchanged."""
        if self.room < self._limits.min_context_left:
            return None
        number = self.turn + 1 if number is None else number
        sampling = self._sampling
        most = min(self.room, sampling.max_tokens if max_tokens is None else max_tokens)
        if most < sampling.max_tokens or stop:
            sampling = replace(sampling, max_tokens=min(most, sampling.max_tokens), stop=(*sampling.stop, *stop))
        grammar = "" if form is None else grammar_of(form, self._renderer, has_tools=self._has_tools)
        if grammar:
            sampling = replace(sampling, grammar=grammar)
        with boundary(EngineError, "engine"), calling(Stage.GENERATION):
            completion = await self._engine.generate(tuple(self._context), sampling, self._seed_key(number))
        self.turn = number
        self.seconds["time_queue"] += completion.time_queue
        self.seconds["time_generate"] += completion.time_generate
        text = self._text(completion.token_ids)
        ended = completion.token_ids[-1:] and completion.token_ids[-1] in self._renderer.stop_token_ids
        content = self._text(completion.token_ids[:-1]) if ended else text
        self._turns[self.turn] = self.num_segments
        read = completion.token_ids[: self._num_before(stop, completion.token_ids)]
        parsed = cast(ToolRenderer, self._renderer).parse(read) if self._has_tools else None
        if parsed is not None and parsed.calls and form is not None and not form.tools:
            # In families without marks a JSON text can read like a call. A text that was cut short is no answer.
            parsed = ParsedTurn(answer=content) if ended else ParsedTurn(content=content)
        self._append(
            Segment(
                role="assistant",
                token_ids=completion.token_ids,
                sampled=True,
                logprobs=completion.logprobs,
                policy_version=completion.policy_version,
                text=text,
                cut_short=completion.finish_reason is FinishReason.LENGTH,
                end=text[len(content) :] if text.startswith(content) else "",
                grammar=grammar,
                acts="" if parsed is None else _acts_of(parsed),
            )
        )
        turn = Turn(
            index=self.turn,
            text=text,
            token_ids=completion.token_ids,
            written=content,
            content=content,
            finish_reason=completion.finish_reason,
        )
        if parsed is None:
            return turn
        return replace(
            turn, content=parsed.content, reasoning=parsed.reasoning, calls=parsed.calls, answer=parsed.answer
        )

    def tell(self, messages: Sequence[Message | ToolReply]) -> int:
        """Append the environment's messages, each separately, but adjacent replies together, while there is room for
        them and one more token. Returns how many were appended. The first message that does not fit is dropped whole,
        with all after it."""
        told = 0
        for is_reply, group in groupby(messages, key=lambda message: isinstance(message, ToolReply)):
            for together in [list(group)] if is_reply else [[message] for message in group]:
                if not self.may_hold(size_of(together)):
                    return told
                token_ids = self._rendered(together)
                if len(token_ids) >= self.room:
                    return told
                acts = "I" if is_reply else ""
                text = self._text(token_ids)
                self._append(Segment(role="tool", token_ids=token_ids, sampled=False, text=text, acts=acts))
                told += len(together)
        return told

    def recall(self, turn: ParsedTurn) -> bool:
        """Append an assistant's turn that was not sampled here; its tokens count as the environment's. Returns False,
        and appends nothing, if there is no room for it and one more token. Raises DataError if its text spells a
        control token."""
        written = cast(ToolRenderer, self._renderer).write(turn)
        if not self.may_hold(len(written)):
            return False
        for text in (turn.content, *(json.dumps(dict(c.arguments)) for c in turn.calls if isinstance(c, ToolCall))):
            if self._renderer.encode_action(text) != self._renderer.observe((Piece(text, False),)):
                raise DataError(f"an assistant's message that was not sampled spells a control token: {text[:80]!r}")
        token_ids = self._renderer.encode_action(written)
        if len(token_ids) >= self.room:
            return False
        self._append(Segment(role="assistant", token_ids=token_ids, sampled=False, text=self._text(token_ids)))
        return True

    def rewind(self, num_segments: int) -> None:
        """Forget all segments after the first `num_segments`; a forgotten segment must not be a sampled one."""
        del self._segments[num_segments:]
        self._context = [token for segment in self._segments for token in segment.token_ids]

    def follow(self, other: Conversation, num_segments: int) -> None:
        """Open with the first segments of another conversation, token by token. Turns are trained in the conversation
        that sampled them; here their tokens count as the environment's."""
        self._has_tools, self._sampling = other._has_tools, other._sampling
        for segment in other._segments[:num_segments]:
            self._append(replace(segment, **_NOT_SAMPLED))

    def repeat(self, other: Conversation, turns: Sequence[int]) -> None:
        """Append turns of another conversation, given by their numbers in the episode, in order, each with its answer
        there; the last turn is appended without its answer. They are trained there; here all tokens count as the
        environment's."""
        ends = [*sorted(other._turns.values()), other.num_segments]
        for turn in turns:
            begin = other._turns[turn]
            end = begin + 1 if turn == turns[-1] else next(n for n in ends if n > begin)
            self._turns[turn] = self.num_segments
            for segment in other._segments[begin:end]:
                role: Role = "assistant" if segment.role == "assistant" else "user"
                self._append(replace(segment, role=role, **_NOT_SAMPLED))

    def release(self) -> None:
        """Tell the engine that no turn follows, so that it may forget the attempt."""
        if not self._is_released:
            self._is_released = True
            self._engine.release(self._seed_key(max(self.turn, 0)))

    def _rendered(self, messages: Sequence[Message | ToolReply]) -> tuple[int, ...]:
        sampled = next((s.token_ids for s in reversed(self._segments) if s.role == "assistant"), ())
        if self._renderer.in_turns and self._segments[-1].role != "assistant":
            sampled = ()  # an empty turn of the policy has been opened
        match messages[0]:
            case Message() as message:
                pieces = message.pieces or (Piece(message.content, False),)
                return tuple(self._renderer.tell(pieces, sampled=sampled))
            case ToolReply():
                replies = cast(Sequence[ToolReply], messages)
                return tuple(cast(ToolRenderer, self._renderer).reply(replies, sampled=sampled))

    def _num_before(self, stop: Sequence[str], token_ids: Sequence[int]) -> int:
        """Number of tokens before the first of these strings."""
        text = self._text(token_ids)
        at = min((text.index(each) for each in stop if each in text), default=None)
        if at is None:
            return len(token_ids)
        return bisect_right(range(len(token_ids) + 1), at, key=lambda n: len(self._text(token_ids[:n]))) - 1

    def _append(self, segment: Segment) -> None:
        self._context.extend(segment.token_ids)
        self._segments.append(segment)

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._renderer.decode(token_ids)

    def _seed_key(self, turn: int) -> SeedKey:
        of = self._attempt
        return SeedKey(of.stream, of.task.id, of.sample_index, turn)


def _acts_of(turn: ParsedTurn) -> str:
    """Return Segment.acts of a turn. Text beside a call is a thought: some model families have no other place for
    one."""
    is_thought = turn.reasoning.strip() or (turn.calls and turn.content.strip())
    return "T" * bool(is_thought) + "S" * bool(turn.calls) + "A" * (turn.answer is not None)


def size_of(messages: Sequence[Message | ToolReply], tools: Sequence[ToolSpec] | None = None) -> int:
    """Number of characters in all messages and tools."""
    texts = (message.content if isinstance(message, Message) else message.text for message in messages)
    return sum(map(len, texts)) + sum(len(str(tool)) for tool in tools or ())


def counted(count: Callable[[], int], *, size: int, most: int, renderer: Renderer) -> int:
    """Return count(), the number of tokens in texts of `size` characters. If their length alone shows that it is more
    than `most`, return a lower bound instead, without tokenizing them."""
    least = size // renderer.longest_token
    return least if least > most else count()


@runtime_checkable
class Driven(Protocol):
    """An environment in which a program decides what to ask the policy, and when. It has `drive` instead of `reset` and
    `step`."""

    async def drive(self, task: Task, new: Callable[[str], Conversation], *, sampling: SamplingParams) -> Observation:
        """Run the whole attempt, and return how it ended. new(stream): a new conversation of the attempt, sampled as
        `sampling` says with the random numbers of that stream. Conversations become branches in the order made; a
        conversation without a sampled turn is left out."""
        ...

    async def score(self, episode: Episode) -> Scores:
        """Like Environment.score."""
        ...

    async def close(self) -> None:
        """Like Environment.close."""
        ...
