"""One attempt's requests: each continues a branch of the episode or opens a new one.

    request   S U0                  opens branch 0:            P0 A0
    request   S U0 A0 T0            continues branch 0:        P0 A0 E0 A1        the tokens A0 that were sampled
    request   S U0 A0 T0'           forks branch 0 after A0:   P0 A0 E0' A2       branch 1; A0 is trained in branch 0
    request   S' U0'                opens branch 2:            P2 A3

A history is never rendered again: sampled tokens stay in the context as they are. An assistant message that the policy
has not sampled (rewritten, summarised, few-shot) counts as the environment's and has no gradient.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import ConfigError, DataError, EngineError
from agentgrpo.core.messages import ParsedTurn, ToolReply
from agentgrpo.core.types import Exit, Message, ToolCall
from agentgrpo.environments.conversation import Conversation
from agentgrpo.environments.program.exchange import ChatAnswer, ChatMessage, ChatRefused, ChatRequest, answer_of
from agentgrpo.environments.program.trained import TrainedBranches

_UNMADE = "error: this call was not made; make one call at a time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one attempt; None = any number."""

    max_requests: int | None
    max_tokens: int | None
    """Sampled tokens of all requests."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """A conversation, with its messages as the client knows them."""

    conversation: Conversation
    tools_key: str
    digest: str
    """Digest of the request that opened the line."""
    is_wanted: bool
    """Answers to its requests may be trained."""
    said: list[ChatMessage] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    """Calls of the last assistant message, as they were sampled."""
    turns: list[_Place] = field(default_factory=list)
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """The position after a sampled turn."""

    num_said: int
    num_segments: int
    calls: tuple[ToolCall, ...]


class Session:
    """The requests of one attempt. Any number of calls of `answer` may run at once. A sampled turn belongs to the
    attempt at once; a call that fails or is cancelled leaves nothing behind."""

    def __init__(
        self,
        new: Callable[[str], Conversation],
        *,
        stream: str,
        limits: SessionLimits,
        plain_without_tools: bool,
        count_tokens: Callable[[str], int],
        trained: TrainedBranches,
    ) -> None:
        """new: as in Driven.drive. plain_without_tools: turns are plain text if no tools are offered. trained: which
        branches are trained."""
        self._new, self._stream, self._limits = new, stream, limits
        self._plain, self._count_tokens, self._trained = plain_without_tools, count_tokens, trained
        self._lines: list[_Line] = []
        self._requests = self._answers = self._continued = self._refused = 0
        self._sampled = self._unattributed = 0
        self.limit: Exit | None = None
        """The limit behind the latest refusal for a limit."""
        self.failure: Exception | None = None
        """A failure that is not the program's, including our own bugs; no request is answered after it."""
        self.last = ""
        """Text of the policy's latest answer."""
        self.on_failure: Callable[[], object] = lambda: None

    @property
    def metrics(self) -> dict[str, float]:
        """requests: answered requests; refused_requests: refused ones. branches: contexts with sampled turns;
        trained_branches: branches with a gradient. continued_share: share of the requests after the first that
        continued a branch; 1 without any. unattributed_tokens: tokens of assistant messages that the policy has not
        sampled, counted by encoding their text; they are not trained."""
        branches = [line.conversation for line in self._lines if line.turns]
        return {
            "requests": float(self._answers),
            "refused_requests": float(self._refused),
            "branches": float(len(branches)),
            "trained_branches": float(sum(branch.is_trained for branch in branches)),
            "continued_share": self._continued / (self._answers - 1) if self._answers > 1 else 1.0,
            "unattributed_tokens": float(self._unattributed),
        }

    async def answer(self, asked: ChatRequest) -> ChatAnswer:
        """Raises ChatRefused."""
        try:
            return await self._answer(asked)
        except ChatRefused:
            self._refused += 1
            raise
        except Exception as e:
            self._refused += 1
            raise self._failed(e) from e

    def refuse(self) -> None:
        """Count a request that could not be parsed."""
        self._refused += 1

    async def _answer(self, asked: ChatRequest) -> ChatAnswer:
        digest = await off_loop(partial(_digest, asked), size=_size_of(asked.messages))
        self._refuse_past_limits()
        self._requests += 1
        line, is_continued = self._line_for(asked, digest)
        before, num_unattributed = line.conversation.num_segments, 0
        line.is_busy = True
        try:
            said = asked.messages[len(line.said) :]
            say = partial(self._say, line, said, asked)
            num_unattributed = await off_loop(say, size=len(asked.tools_key) + _size_of(said))
            num_prompt = line.conversation.num_tokens
            turn = await line.conversation.sample(max_tokens=self._most_tokens(asked), stop=asked.stop, form=asked.form)
            if turn is None:
                raise self._overflow(line.conversation)
        except BaseException as e:
            self._requests -= isinstance(e, ChatRefused)
            line.conversation.rewind(before)
            if not line.turns and line in self._lines:
                self._lines.remove(line)
            raise
        finally:
            line.is_busy = False
        answer = answer_of(turn, number=self._answers, num_prompt_tokens=num_prompt, asked=asked)
        line.said = [*asked.messages, answer.said]
        line.calls = [*answer.calls, *answer.unmade]
        line.turns.append(_Place(len(line.said), line.conversation.num_segments, tuple(line.calls)))
        self._answers += 1
        self._continued += is_continued
        self._unattributed += num_unattributed
        self._sampled += len(turn.token_ids)
        self.last = answer.content
        if self._trained.which == "last":
            for other in self._lines:
                other.conversation.is_trained = other is line
        return answer

    def _refuse_past_limits(self) -> None:
        if self.failure is not None:
            raise self._failed(self.failure)
        for name, done, most in (
            ("max_requests", self._requests, self._limits.max_requests),
            ("max_tokens", self._sampled, self._limits.max_tokens),
        ):
            if most is not None and done >= most:
                self.limit = Exit.MAX_TURNS
                raise ChatRefused(f"the limit of this episode is reached: environment.{name}={most}", code=name)

    def _most_tokens(self, asked: ChatRequest) -> int | None:
        left = None if self._limits.max_tokens is None else self._limits.max_tokens - self._sampled
        return min((most for most in (asked.max_tokens, left) if most is not None), default=None)

    def _overflow(self, conversation: Conversation) -> ChatRefused:
        self.limit = Exit.CONTEXT_OVERFLOW
        return ChatRefused(
            "the messages leave no room for an answer in the context of this model, which holds "
            f"{conversation.max_context} tokens",
            code="context_length_exceeded",
            param="messages",
        )

    def _failed(self, error: Exception) -> ChatRefused:
        """Return the refusal for an error. Messages that the renderer cannot write and forms that the engine cannot
        sample are the request's fault; any other error fails the attempt."""
        if isinstance(error, ConfigError | DataError):
            return ChatRefused(str(error), param="messages")
        if isinstance(error, EngineError) and error.kind == "grammar":
            return ChatRefused(str(error), code="unsupported_value")
        self.failure = error
        self.on_failure()
        return ChatRefused(f"the episode has failed: {error}", status=500)

    # --- which branch

    def _line_for(self, asked: ChatRequest, digest: str) -> tuple[_Line, bool]:
        """Return the line that the request continues, and True; else a new line, and False. A new line copies the line
        that shares the most with the request, up to the last sampled turn that the request repeats. A line is trained
        as a whole or not at all."""
        is_wanted = self._trained.has(asked)
        found: tuple[tuple[int, bool], _Line, _Place] | None = None
        for line in self._lines:
            if line.tools_key != asked.tools_key:
                continue
            num_repeated = _num_repeated(asked.messages, line.said)
            place = next((p for p in reversed(line.turns) if p.num_said <= num_repeated), None)
            if place is not None:
                is_open = place == line.turns[-1] and not line.is_busy and line.is_wanted == is_wanted
                rank = (place.num_said, is_open)
                if found is None or rank > found[0]:
                    found = (rank, line, place)
        if found is None:
            return self._branch(asked, digest), False
        (_, can_go_on), line, place = found
        if can_go_on:
            return line, True
        branch = self._branch(asked, digest)
        branch.conversation.follow(line.conversation, place.num_segments)
        branch.said, branch.calls = line.said[: place.num_said], list(place.calls)
        return branch, False

    def _branch(self, asked: ChatRequest, digest: str) -> _Line:
        conversation = self._new(self._stream_of(digest))
        conversation.is_trained = is_wanted = self._trained.has(asked)
        branch = _Line(conversation=conversation, tools_key=asked.tools_key, digest=digest, is_wanted=is_wanted)
        self._lines.append(branch)
        return branch

    def _stream_of(self, digest: str) -> str:
        """Return the random stream of a new branch. The first branch uses the attempt's own stream, as in other
        environments; a later one depends on its own request, not on concurrent ones."""
        alike = sum(line.digest == digest for line in self._lines)
        return f"{self._stream}/{digest}.{alike}" if self._lines else self._stream

    # --- appending messages

    def _say(self, line: _Line, messages: Sequence[ChatMessage], asked: ChatRequest) -> int:
        """Append messages; return the number of assistant tokens that the policy has not sampled. Raises ChatRefused if
        there is no room."""
        conversation, calls, num_unattributed = line.conversation, line.calls, 0
        for is_own, group in groupby(messages, key=lambda message: message.role == "assistant"):
            said = list(group)
            if is_own and conversation.num_segments == 0:
                raise ChatRefused("the first message is the assistant's; begin with the system's or a user's")
            if is_own:
                turn = _turn_of(said)
                if not conversation.recall(turn):
                    raise self._overflow(conversation)
                calls = [call for call in turn.calls if isinstance(call, ToolCall)]
                texts = [turn.content, *(arguments for message in said for _, arguments in message.calls)]
                num_unattributed += sum(map(self._count_tokens, texts))
            elif conversation.num_segments == 0:
                offered = () if asked.tools is None and not self._plain else asked.tools
                if not (conversation.may_hold(len(asked.tools_key)) and conversation.open(_opening(said), offered)):
                    raise self._overflow(conversation)
            else:
                told = _told(said, calls)
                if conversation.tell(told) < len(told):
                    raise self._overflow(conversation)
        return num_unattributed


def _size_of(messages: Sequence[ChatMessage]) -> int:
    """Return the messages' characters, with an allowance for the markup around each."""
    calls = sum(len(arguments) for message in messages for _, arguments in message.calls)
    return sum(len(message.content) for message in messages) + calls + 20 * len(messages)


def _digest(asked: ChatRequest) -> str:
    said = json.dumps([asked.tools_key, [(m.role, m.content, m.calls) for m in asked.messages]])
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def _num_repeated(messages: Sequence[ChatMessage], said: Sequence[ChatMessage]) -> int:
    """Return how many leading messages the two share. At least one of `messages` is left over; if it is the
    assistant's, the shared message before it is not counted."""
    pairs = enumerate(zip(messages, said, strict=False))
    same = next((i for i, (message, before) in pairs if message != before), min(len(messages) - 1, len(said)))
    return same - (messages[same].role == "assistant")


def _opening(said: Sequence[ChatMessage]) -> list[Message]:
    """Return the messages as chat templates take them: at most one system message, which comes first."""
    system = [message.content for message in said if message.role == "system"]
    others = [Message(role=message.role, content=message.content) for message in said if message.role != "system"]
    return [*([Message(role="system", content="\n\n".join(system))] if system else []), *others]


def _told(said: Sequence[ChatMessage], calls: Sequence[ToolCall]) -> list[Message | ToolReply]:
    """Return the messages after a turn: the replies to its calls, then all other texts as one user message, which the
    policy's next turn follows."""
    replies = [ToolReply(call=calls[m.answers], text=m.content) for m in said if m.answers is not None]
    if replies:
        replies += [ToolReply(call=call, text=_UNMADE) for call in calls[len(replies) :]]
    words = [message.content for message in said if message.answers is None]
    return [*replies, *([Message(role="user", content="\n\n".join(words))] if words else [])]


def _turn_of(said: Sequence[ChatMessage]) -> ParsedTurn:
    """Return assistant messages as the policy would have written them in one turn."""
    calls = []
    for name, arguments in (call for message in said for call in message.calls):
        try:
            values = json.loads(arguments)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ChatRefused(f"the arguments of a call of {name!r} are not a JSON object", param="messages")
        calls.append(ToolCall(name=name, arguments=values))
    content = "\n".join(message.content for message in said if message.content)
    return ParsedTurn(content=content, calls=tuple(calls))
