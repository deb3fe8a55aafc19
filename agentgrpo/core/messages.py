"""The message protocol between a policy, its tools and whoever grades it. Standard library only.

    sampled tokens --Renderer.parse--> ParsedTurn --Toolbox--> ToolReply --Renderer.reply--> injected tokens

An AgentMessage is what an agent of any making returns for one attempt; its status, and that of a group of attempts,
follow from its finish reason alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from agentgrpo.core import parts
from agentgrpo.core.errors import BadValue
from agentgrpo.core.types import Exit, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a policy is told of a tool, and what its arguments are checked against."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: {"type": "object", "properties": ..., "required": ...}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """A call that the policy began and that cannot be read as one. It is answered like a call."""

    text: str
    """As it was sampled."""
    problem: str
    """What is wrong with it, for the policy: one line."""
    name: str = ""
    """Of the tool that was meant, as far as that can be read."""
    id: str = ""


AnyCall: TypeAlias = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """One sampled turn as its renderer reads it. Without calls and without an answer it is a format error."""

    calls: tuple[AnyCall, ...] = ()
    """In the order in which they were written; several are parallel."""
    answer: str | None = None
    """The final answer; None where the turn calls tools or says nothing that ends the episode."""
    reasoning: str = ""
    """The text of reasoning blocks (Thought: ..., <think>...</think>)."""
    content: str = ""
    """The rest of the text, without calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """What a call is answered with. `text` is untrusted."""

    call: AnyCall
    text: str


class Status(StrEnum):
    """Where an attempt stands: a closed vocabulary."""

    INIT = "init"
    COMPLETED = "completed"
    FAILED = "failed"


_COMPLETED = frozenset({"stop", "length", "tool_calls"})
_FINISH_REASONS = {
    Exit.ANSWERED: "stop",
    Exit.NO_ACTION: "stop",
    Exit.TIMEOUT: "timeout",
    Exit.ERROR: "error",
}


def finish_reason_of(exit: Exit) -> str:
    """stop where the policy ended it, timeout and error where the infrastructure failed, length for every limit: of the
    context, of turns, of searches, of turns without an action."""
    return _FINISH_REASONS.get(exit, "length")


def status_of(finish_reason: str) -> Status:
    """stop, length, tool_calls -> completed; timeout, error, abort and anything unknown -> failed."""
    return Status.COMPLETED if finish_reason in _COMPLETED else Status.FAILED


def group_status(statuses: Iterable[Status]) -> Status:
    """Return completed if all episodes are completed, failed if one failed, and init otherwise."""
    found = set(statuses)
    if found == {Status.COMPLETED}:
        return Status.COMPLETED
    return Status.FAILED if Status.FAILED in found else Status.INIT


MAX_REASON = 2000
"""Characters of a judge's reason that are kept."""


def content_of(value: Any, what: str = "a value") -> str:
    """The content rule everywhere (parts.text_of). Raises BadValue."""
    with _told():
        return parts.text_of(value, what)


def text_in(value: Any, what: str) -> str | None:
    """See parts.text_in. Raises BadValue."""
    with _told():
        return parts.text_in(value, what)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except parts.NotText as e:
        raise BadValue(str(e)) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """What an agent returns for one attempt: the chat-completion view of its last message. In a trace, what the
    environment said in between has the role `tool`."""

    content: str
    finish_reason: str
    """stop | length | tool_calls | timeout | error; "" of what the environment said."""
    role: Literal["assistant", "tool"] = "assistant"
    finish_info: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the role `tool` what the environment did by itself, such as a search at a dead end."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return status_of(self.finish_reason)
