"""Conversations in chat format, as everybody has them, a JSON object a line:

    {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "tools": [...]}
    {"prompt": [...], "completion": [...]}      only the completion is learned from; each may be a text

Tools and tool calls are as chat-completion services take them. Whatever is wrong is a DataError that names file and
line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from agentgrpo.core.errors import DataError
from agentgrpo.core.messages import ParsedTurn, ToolSpec
from agentgrpo.core.types import Message, Role, ToolCall
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.records import Node, read_rows

_ROLES: tuple[Role, ...] = get_args(Role)
_LINE = '{"messages": [{"role": ..., "content": ...}, ...]} or {"prompt": ..., "completion": ...}'


class CallReply(NamedTuple):
    """What a call is answered with."""

    call: int
    """Which one of the turn before, from 0."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A turn of the policy's, and what is said to it then: nothing after the last one."""

    turn: ParsedTurn
    then: tuple[Message | CallReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation."""

    row: Node
    opening: tuple[Message, ...]
    """Before the first turn that is learned from."""
    tools: tuple[ToolSpec, ...] | None
    """None = it has neither tools nor calls."""
    exchanges: tuple[Exchange, ...]

    @property
    def id(self) -> str:
        return f"{self.row.path.name}:{self.row.at.removeprefix('line ')}"


def read_chats(path: str | Path) -> tuple[Chat, ...]:
    """The conversations of a file, in order. Raises DataError, also where there is none."""
    malformed = Malformed()
    chats = tuple(malformed.spare(_chat, read_rows(path, "demonstrations.path", malformed)))
    malformed.refuse()
    if not chats:
        raise DataError(f"demonstrations.path: '{path}' holds no conversation; write one object per line: {_LINE}")
    return chats


def _chat(row: Node) -> Chat:
    said = row.object()
    if "messages" in said:
        messages = _messages(row, "messages", "user")
        first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
        opening, rest = messages[:first], messages[first:]
    elif "prompt" in said and "completion" in said:
        opening, rest = _messages(row, "prompt", "user"), _messages(row, "completion", "assistant")
    else:
        row.refuse(f"its keys are {', '.join(said) or 'none'}; needed is {_LINE}")
    if not opening:
        row.refuse("nothing is said before the assistant's first turn; begin with a user message")
    if not rest or {rest[0]["role"], rest[-1]["role"]} != {"assistant"}:
        row.refuse("what is learned from must begin and end with an assistant message")
    tools = tuple(_tool(row, tool) for tool in _list(row, said, "tools"))
    has_tools = bool(tools) or any(m.get("tool_calls") for m in rest)
    return Chat(
        row=row,
        opening=tuple(
            Message(role=m["role"], content=_text(row, m), tool_calls=tuple(_calls(row, m))) for m in opening
        ),
        tools=tools if has_tools else None,
        exchanges=tuple(_exchanges(row, rest, has_tools)),
    )


def _exchanges(row: Node, messages: Sequence[Mapping[str, Any]], has_tools: bool) -> list[Exchange]:
    found: list[Exchange] = []
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            turn, then = found[-1].turn, found[-1].then
            found[-1] = Exchange(turn=turn, then=(*then, _said(row, m, turn, then)))
            continue
        if i and messages[i - 1]["role"] == "assistant":
            row.refuse("two assistant messages follow each other; make them one")
        text, calls, thought = _text(row, m), tuple(_calls(row, m)), _text(row, m, "reasoning_content")
        if not (text.strip() or calls):
            row.refuse("an assistant message says nothing; give it content or tool_calls")
        if has_tools and not calls:
            found.append(Exchange(turn=ParsedTurn(answer=text, reasoning=thought)))
        else:
            found.append(Exchange(turn=ParsedTurn(calls=calls, content=text, reasoning=thought)))
    return found


def _said(
    row: Node, m: Mapping[str, Any], turn: ParsedTurn, before: Sequence[Message | CallReply]
) -> Message | CallReply:
    if m["role"] == "user":
        return Message(role="user", content=_text(row, m))
    if m["role"] == "system":
        row.refuse("a system message after the assistant's first turn; put it first")
    ids = [call.id for call in turn.calls]
    given = m.get("tool_call_id")
    at = ids.index(given) if given in ids and given else sum(isinstance(said, CallReply) for said in before)
    if at >= len(ids):
        row.refuse("a tool message answers no tool call of the assistant message before it")
    return CallReply(at, _text(row, m))


# --- The parts of a message.


def _messages(row: Node, key: str, role: Role) -> list[Mapping[str, Any]]:
    """role: of the one message that a text is."""
    given = row.object()[key]
    messages = [{"role": role, "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        row.refuse(f'\'{key}\' must be a list of messages, {{"role": ..., "content": ...}} each')
    for m in messages:
        if m.get("role") not in _ROLES:
            row.refuse(f"role {json.dumps(m.get('role'))}; {', '.join(_ROLES)} are allowed")
    return messages


def _text(row: Node, m: Mapping[str, Any], key: str = "content") -> str:
    given = m.get(key)
    parts = given if isinstance(given, list) else [{"type": "text", "text": given or ""}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        row.refuse(f"the {key} of a message of role {m['role']} must be a text, or a list of parts of type text")
    return "".join(map(str, texts))


def _calls(row: Node, m: Mapping[str, Any]) -> list[ToolCall]:
    calls = []
    for given in _list(row, m, "tool_calls"):
        function = given.get("function", given)
        arguments = function.get("arguments", {}) if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as e:
                row.refuse(f"the arguments of a tool call are not JSON: {e}")
        if not isinstance(arguments, Mapping) or not isinstance(function.get("name"), str):
            row.refuse('a tool call must be {"function": {"name": ..., "arguments": {...}}}')
        calls.append(ToolCall(name=function["name"], arguments=arguments, id=str(given.get("id") or "")))
    return calls


def _tool(row: Node, given: Mapping[str, Any]) -> ToolSpec:
    function = given.get("function", given)
    parameters = function.get("parameters") or {"type": "object", "properties": {}} if function else None
    if not isinstance(parameters, Mapping) or not isinstance(function.get("name"), str):
        row.refuse('a tool must be {"function": {"name": ..., "description": ..., "parameters": {...}}}')
    return ToolSpec(name=function["name"], description=str(function.get("description") or ""), parameters=parameters)


def _list(row: Node, values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Of objects; empty where there is none."""
    given = values.get(key) or []
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        row.refuse(f"'{key}' must be a list of objects, or left out")
    return given
