"""The message protocol between a policy, its tools and its graders. Standard library only.

    sampled tokens --Renderer.parse--> ParsedTurn --Toolbox--> ToolReply --Renderer.reply--> injected tokens

An AgentMessage has the result of one attempt, whatever the agent. Its status, and the status of a group of attempts,
follow from finish reasons alone.
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
    """The description of a tool for the policy, and the schema that its arguments are checked against."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: {"type": "object", "properties": ..., "required": ...}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """A tool call that the policy began and that cannot be parsed. It gets a reply like any call."""

    text: str
    """The sampled text."""
    problem: str
    """The mistake, described for the policy on one line."""
    name: str = ""
    """Name of the intended tool, as far as it can be read."""
    id: str = ""


AnyCall: TypeAlias = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """One sampled turn as its renderer parses it. A turn without calls and without an answer is a format error."""

    calls: tuple[AnyCall, ...] = ()
    """Tool calls in the order of the text; several calls run in parallel."""
    answer: str | None = None
    """The final answer; None if the turn calls tools or has no answer."""
    reasoning: str = ""
    """The text of reasoning blocks (Thought: ..., <think>...</think>)."""
    content: str = ""
    """The rest of the text, without calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The reply to a tool call. `text` is untrusted."""

    call: AnyCall
    text: str


class Status(StrEnum):
    """State of an attempt: a closed vocabulary."""

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
    """Return stop if the policy ended the episode, timeout or error if the infrastructure failed, and length for every
    limit: context, turns, searches, turns without an action."""
    return _FINISH_REASONS.get(exit, "length")


def status_of(finish_reason: str) -> Status:
    """Return completed for stop, length and tool_calls; failed for timeout, error, abort and any unknown reason."""
    return Status.COMPLETED if finish_reason in _COMPLETED else Status.FAILED


def group_status(statuses: Iterable[Status]) -> Status:
    """Return completed if all episodes are completed, failed if one failed, and init otherwise."""
    found = set(statuses)
    if found == {Status.COMPLETED}:
        return Status.COMPLETED
    return Status.FAILED if Status.FAILED in found else Status.INIT


MAX_REASON = 2000
"""Maximum number of characters of a judge's reason that are kept."""


def content_of(value: Any, what: str = "a value") -> str:
    """Return the text of a message's content (parts.text_of). Raises BadValue."""
    with _told():
        return parts.text_of(value, what)


def text_in(value: Any, what: str) -> str | None:
    """Like parts.text_in, but raises BadValue."""
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
    """An agent's result of one attempt: the chat-completion view of its last message. In a trace, messages of the
    environment have the role `tool`."""

    content: str
    finish_reason: str
    """stop | length | tool_calls | timeout | error; "" for messages of the environment."""
    role: Literal["assistant", "tool"] = "assistant"
    finish_info: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """In the role `tool`, actions that the environment took by itself, such as a search at a dead end."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return status_of(self.finish_reason)
