"""Conversations in the common chat formats, one JSON object per line:

    {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "tools": [...]}
    {"prompt": [...], "completion": [...]}      only the completion is learned from; each may be a text
    {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}      ShareGPT format

Tools and tool calls have the format of chat-completion services. An assistant message that is marked ("weight": 0,
"train": false, ...) is context only. An unknown key is refused in a message, where it may change the meaning, and
listed as unused in a row. Every problem raises a DataError that names file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from agentgrpo.core.errors import DataError, did_you_mean
from agentgrpo.core.messages import ParsedTurn, ToolSpec
from agentgrpo.core.types import Message, Role, ToolCall
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.records import Node, read_rows, shown

_ROLES: tuple[Role, ...] = get_args(Role)
_LINE = '{"messages": [{"role": ..., "content": ...}, ...]} or {"prompt": ..., "completion": ...}'
_SHARED_ROLES: Mapping[str, Role] = {
    **{role: role for role in _ROLES},
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}
"""Values of ShareGPT's `from`, including LLaMA-Factory's names for a tool call and its result."""

_LEARNED = ("weight", "loss", "loss_mask", "step_loss_mask", "loss_scale", "train", "training", "trainable")
"""Keys by which other trainers mark whether a message is learned from."""
_MASKED = "masked"
"""Key by which a message is marked as not learned from."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_READ = {"role", "content", "tool_calls", "tool_call_id", "name", *_LEARNED, _MASKED, *_THOUGHTS}
"""Keys of a message that are read."""
_NOTED = {
    *("id", "index", "created", "created_at", "timestamp", "date", "model", "source", "language", "metadata"),
    *("token_count", "finish_reason", "logprobs", "usage", "annotations", "cache_control", "strict"),
}
"""Keys of a message, or of a part of one, that do not affect the model's input: they are listed as unused."""
_OF_ROW: Mapping[str, str] = {
    **dict.fromkeys(
        (*_LEARNED, _MASKED, "mask", "mask_history", "weights", "loss_weight", "sample_weight"),
        'only messages are weighed: write "weight": 0 into each assistant message that is not to be learned from',
    ),
    **dict.fromkeys(
        ("image", "images", "video", "videos", "audio", "audios"), "a conversation is text alone; leave the row out"
    ),
    **dict.fromkeys(("functions", "function_call"), 'call it "tools", a list of {"type": "function", "function": ...}'),
    **dict.fromkeys(
        ("chosen", "rejected"), 'there is nothing to prefer here: write the one to be imitated as "messages"'
    ),
    **dict.fromkeys(
        ("chat_template_kwargs", "enable_thinking", "documents", "history"),
        "the chat template is not given it: write what it says as messages",
    ),
}
"""Columns that would change what is learned, and what to do instead."""


class CallReply(NamedTuple):
    """The reply to a tool call."""

    call: int
    """Index of the call in the preceding turn, from 0."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A turn of the policy and the messages that follow it; the last turn has no following messages."""

    turn: ParsedTurn
    then: tuple[Message | CallReply, ...] = ()
    is_learned: bool = True
    """True if the turn is imitated; false if it is context only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation."""

    row: Node
    opening: tuple[Message, ...]
    """The messages before the first turn."""
    tools: tuple[ToolSpec, ...] | None
    """The tools on offer; None if the conversation has neither tools nor calls."""
    exchanges: tuple[Exchange, ...]
    split: str = "train"
    unused: frozenset[str] = frozenset()
    """Keys of the row and of its messages that do not affect the model's input."""

    @property
    def id(self) -> str:
        return f"{self.row.path.name}:{self.row.at.removeprefix('line ')}"


def read_chats(path: str | Path) -> tuple[Chat, ...]:
    """Return the conversations of a file, in order. Raises DataError, also for a file without conversations."""
    malformed = Malformed()
    chats = tuple(malformed.spare(_chat, read_rows(path, "demonstrations.path", malformed)))
    malformed.refuse()
    if not chats:
        raise DataError(f"demonstrations.path: '{path}' holds no conversation; write one object per line: {_LINE}")
    return chats


def _chat(row: Node) -> Chat:
    return _Reader(row).chat()


class _Said(NamedTuple):
    """One message."""

    role: Role
    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    is_learned: bool | None
    """The mark of the message; None = not marked."""
    call: tuple[str, str]
    """(id, name) of the call that a tool message answers, as far as the message says."""
    answers: int = -1
    """Index of the answered call in the preceding turn."""


class _Reader:
    """Reads one row."""

    def __init__(self, row: Node) -> None:
        self._row = row
        self._unused: set[str] = set()

    def chat(self) -> Chat:
        opening, rest = self._halves()
        if not opening:
            self._refuse("there is no message before the assistant's first turn; begin with a user message")
        if not rest or {rest[0].role, rest[-1].role} != {"assistant"}:
            self._refuse("the part to be learned must begin and end with an assistant message")
        exchanges = [*self._exchanges(rest, tools := tuple(self._tools()))]
        if not any(exchange.is_learned for exchange in exchanges):
            self._refuse("none of its assistant messages is to be learned from; take the line out")
        return Chat(
            row=self._row,
            opening=tuple(Message(role=m.role, content=m.text, tool_calls=m.calls) for m in opening),
            tools=tools if tools or any(m.calls for m in rest) else None,
            exchanges=tuple(exchanges),
            split=self._row.split("train") or "train",
            unused=frozenset(self._unused),
        )

    def _halves(self) -> tuple[list[_Said], list[_Said]]:
        """Return the messages before the first turn, and the remaining ones."""
        row = self._row.object()
        read = {"tools", "system", "split"}
        formats = [keys for keys in (("messages",), ("conversations",), ("prompt", "completion")) if {*keys} <= {*row}]
        if {"instruction", "output"} <= row.keys() and not formats:
            self._refuse(
                'it is an Alpaca row; write {"prompt": ..., "completion": ...} with instruction and input as one text'
            )
        if not formats:
            self._refuse(f"its keys are {', '.join(row) or 'none'}; needed is {_LINE}")
        if len(formats) > 1:
            named = " and ".join("+".join(keys) for keys in formats)
            self._refuse(f"it has {named}, each of which is a conversation; leave all but one of them out")
        [keys] = formats
        self._look_at_columns({key: row[key] for key in row if key not in read.union(keys)})
        if keys != ("prompt", "completion"):
            said = self._answered(self._system(self._messages(keys[0], "user")))
            first = next((i for i, m in enumerate(said) if m.role == "assistant"), len(said))
            return said[:first], said[first:]
        prompt = self._system(self._messages("prompt", "user"))
        if any(m.is_learned or m.reasoning for m in prompt):
            self._refuse(
                "an assistant message of the prompt has reasoning, or is marked to be learned from, and a prompt is "
                'neither; write all as "messages", with "weight": 0 in those that are not to be learned from'
            )
        said = self._answered([*prompt, *self._messages("completion", "assistant")])
        return said[: len(prompt)], said[len(prompt) :]

    def _look_at_columns(self, columns: Mapping[str, Any]) -> None:
        for key, value in columns.items():
            means_nothing = _is_empty(value) or (key in _LEARNED and value == 1)
            if key in _OF_ROW and not means_nothing:
                self._refuse(f"'{key}' is {shown(value)}, and {_OF_ROW[key]}")
            if key == "label" and isinstance(value, bool):
                self._refuse("'label' says whether it is good; take out the lines that are not, and the column")
            if not means_nothing:
                self._unused.add(key)

    def _system(self, said: list[_Said]) -> list[_Said]:
        """Prepend the system message given as a column of the row."""
        text = self._row.optional_text("system")
        if text and said and said[0].role == "system":
            self._refuse("it has a system message and a column 'system'; leave one of them out")
        return [_Said("system", text, (), "", None, ("", "")), *said] if text else said

    def _exchanges(self, said: Sequence[_Said], tools: Sequence[ToolSpec]) -> Iterator[Exchange]:
        has_tools = bool(tools) or any(m.calls for m in said)
        starts = [i for i, m in enumerate(said) if m.role == "assistant"]
        for start, end in zip(starts, [*starts[1:], len(said)], strict=True):
            m, then = said[start], said[start + 1 : end]
            if not (m.text.strip() or m.calls):
                self._refuse("an assistant message says nothing; give it content or tool_calls")
            is_answer = has_tools and not m.calls
            yield Exchange(
                turn=ParsedTurn(
                    calls=m.calls,
                    answer=m.text if is_answer else None,
                    content="" if is_answer else m.text,
                    reasoning=m.reasoning,
                ),
                then=tuple(
                    CallReply(s.answers, s.text) if s.role == "tool" else Message(role="user", content=s.text)
                    for s in then
                ),
                is_learned=m.is_learned is not False,
            )

    # --- Match tool messages with the calls they answer.

    def _answered(self, said: Sequence[_Said]) -> list[_Said]:
        """Return the messages with tool messages sorted in the order of the calls that they answer, as in the rollout
        loop."""
        ordered: list[_Said] = []
        for is_reply, block in groupby(said, key=lambda m: m.role == "tool"):
            if not is_reply:
                ordered += block
                continue
            calls = ordered[-1].calls if ordered else ()
            replies: dict[int, _Said] = {}
            for m in block:
                at = self._call_of(m, calls, replies)
                replies[at] = m._replace(answers=at)
            self._refuse_unanswered(calls, replies)
            ordered += [replies[at] for at in sorted(replies)]
        for i, (m, after) in enumerate(pairwise(ordered)):
            if m.role == after.role == "assistant":
                self._refuse("two assistant messages follow each other; make them one")
            if after.role == "system" and any(before.role == "assistant" for before in ordered[: i + 1]):
                self._refuse("a system message after the assistant's first turn; put it first")
            if after.role != "tool":
                self._refuse_unanswered(m.calls, {})
        return ordered

    def _refuse_unanswered(self, calls: Sequence[ToolCall], replies: Mapping[int, _Said]) -> None:
        missing = next((call for i, call in enumerate(calls) if i not in replies), None)
        if missing is not None:
            self._refuse(
                f"an assistant message makes {len(calls)} tool calls, and {len(replies)} tool messages answer them: "
                f"{_shown(missing)} has no result"
            )

    def _call_of(self, m: _Said, calls: Sequence[ToolCall], answered: Mapping[int, _Said]) -> int:
        """Find the answered call by its id; without an id, take the next unanswered call, matching the name if one is
        given."""
        id, name = m.call
        fit = [i for i, call in enumerate(calls) if (not id or call.id == id) and (not name or call.name == name)]
        left = [i for i in fit if i not in answered]
        if not left:
            says = ", ".join(f"{key}={value}" for key, value in (("tool_call_id", id), ("name", name)) if value)
            made = ", ".join(map(_shown, calls)) or "no call"
            self._refuse(
                f"a tool message answers no tool call{' that is still open' * bool(fit)} of the message before it: it "
                f"says {says or 'nothing'}, and that message makes {made}"
            )
        return left[0]

    # --- The parts of a message.

    def _messages(self, key: str, role: Role) -> list[_Said]:
        """Read a list of messages. role: used if the value is a text, which becomes a single message."""
        given = self._row.object()[key]
        messages = [{"role": role, "content": given}] if isinstance(given, str) else given
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            self._refuse(f'\'{key}\' must be a list of messages, {{"role": ..., "content": ...}} each')
        return [self._message(self._translated(m)) for m in messages]

    def _translated(self, m: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a ShareGPT message with the usual keys."""
        if not {"from", "value"} <= m.keys():
            return m
        role = _SHARED_ROLES.get(str(m["from"]))
        if role is None:
            self._refuse(f"from {json.dumps(m['from'])}; {', '.join(_SHARED_ROLES)} are allowed")
        rest = {key: value for key, value in m.items() if key not in ("from", "value")}
        if m["from"] != "function_call":
            return {**rest, "role": role, "content": m["value"]}
        calls = self._json(m["value"], "the value of a function_call")
        return {**rest, "role": role, "content": None, "tool_calls": calls if isinstance(calls, list) else [calls]}

    def _message(self, m: Mapping[str, Any]) -> _Said:
        role = m.get("role")
        if role not in _ROLES:
            self._refuse(f"role {json.dumps(role)}; {', '.join(_ROLES)} are allowed")
        self._look_at_keys(m, _READ, f"a message of role {role}")
        thoughts = {text for key in _THOUGHTS if (text := self._text(m, key))}
        if len(thoughts) > 1:
            self._refuse(f"an assistant message has reasoning by two names that differ ({', '.join(_THOUGHTS)})")
        said = _Said(
            role=role,
            text=self._text(m),
            calls=tuple(self._calls(m)),
            reasoning="".join(thoughts),
            is_learned=self._is_learned(m),
            call=(self._name(m, "tool_call_id"), self._name(m, "name")),
        )
        if role != "assistant" and (said.calls or said.reasoning or said.is_learned):
            what = "tool calls" if said.calls else "reasoning" if said.reasoning else "a mark to be learned from"
            self._refuse(f"a message of role {role} has {what}; only an assistant's is read so")
        if role != "tool" and any(said.call):
            key = "tool_call_id" if said.call[0] else "name"
            self._refuse(f"a message of role {role} has the key '{key}', which only a tool's may have; take it out")
        return said

    def _is_learned(self, m: Mapping[str, Any]) -> bool | None:
        marks = {key: m[key] for key in (*_LEARNED, _MASKED) if m.get(key) is not None}
        for key, value in marks.items():
            if not isinstance(value, int | float) or value not in (0, 1):
                self._refuse(
                    f"'{key}' of a message is {shown(value)}; a turn is learned from or not: 0, 1, false and true are "
                    "allowed"
                )
        told = {bool(value) != (key == _MASKED) for key, value in marks.items()}
        if len(told) > 1:
            self._refuse(f"{' and '.join(marks)} of a message contradict each other; leave one of them out")
        return next(iter(told), None)

    def _text(self, m: Mapping[str, Any], key: str = "content") -> str:
        given = "" if m.get(key) is None else m[key]
        texts = []
        for part in given if isinstance(given, list) else [{"type": "text", "text": given}]:
            is_text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
            if not is_text:
                self._refuse(
                    f"the {key} of a message of role {m['role']} must be a text, or a list of parts of type text"
                )
            self._look_at_keys(part, {"type", "text"}, f"a part of a message of role {m['role']}")
            texts.append(part["text"])
        return "".join(texts)

    def _name(self, m: Mapping[str, Any], key: str) -> str:
        given = m.get(key)
        if given is not None and not isinstance(given, str | int):
            self._refuse(f"the {key} of a message of role {m['role']} must be a text")
        return "" if given is None else str(given)

    def _calls(self, m: Mapping[str, Any]) -> Iterator[ToolCall]:
        ids = set()
        for given in self._list(m, "tool_calls"):
            function = given.get("function", given)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                self._refuse('a tool call must be {"function": {"name": ..., "arguments": {...}}}')
            self._look_at_function(given, function, {"arguments", "id", "index"}, "a tool call")
            arguments = function.get("arguments", {})
            if isinstance(arguments, str):
                arguments = self._json(arguments, "the arguments of a tool call")
            if not isinstance(arguments, Mapping):
                self._refuse('a tool call must be {"function": {"name": ..., "arguments": {...}}}')
            id = str(given.get("id") or "")
            if id and id in ids:
                self._refuse(f"two tool calls of one message have the id {id}; give each its own")
            ids.add(id)
            yield ToolCall(name=function["name"], arguments=arguments, id=id)

    def _tools(self) -> Iterator[ToolSpec]:
        row = self._row.object()
        if isinstance(row.get("tools"), str) and row["tools"].strip():
            row = {"tools": self._json(row["tools"], "the tools, a list of objects or its text,")}
        for given in self._list(row, "tools"):
            function = given.get("function", given)
            parameters = function.get("parameters") if isinstance(function, Mapping) else ""
            if parameters is None:
                parameters = {"type": "object", "properties": {}}
            if not isinstance(parameters, Mapping) or not isinstance(function.get("name"), str):
                self._refuse('a tool must be {"function": {"name": ..., "description": ..., "parameters": {...}}}')
            self._look_at_function(given, function, {"description", "parameters"}, "a tool")
            description = str(function.get("description") or "")
            yield ToolSpec(name=function["name"], description=description, parameters=parameters)

    def _look_at_function(
        self, given: Mapping[str, Any], function: Mapping[str, Any], known: set[str], what: str
    ) -> None:
        if given.get("type") not in (None, "function"):
            self._refuse(f"{what} is of the type {shown(given['type'])}; function is allowed")
        self._look_at_keys({**given, **function}, {"type", "function", "name", *known}, what)

    def _look_at_keys(self, given: Mapping[str, Any], known: set[str], what: str) -> None:
        for key in [key for key, value in given.items() if key not in known and not _is_empty(value)]:
            if key not in _NOTED:
                self._refuse(
                    f"{what} has the key '{key}', which is not read and may change what it means; "
                    f"{', '.join(sorted(known))} are: rename it, or take it out.{did_you_mean(key, known)}"
                )
            self._unused.add(f"{key} (of {what})")

    def _list(self, values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        """Return a list of objects; empty if the key is missing."""
        given = values.get(key)
        if given is None or given == "":
            return []
        if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
            self._refuse(f"'{key}' must be a list of objects, or left out")
        return given

    def _json(self, text: Any, what: str) -> Any:
        try:
            return json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError) as e:
            self._refuse(f"{what} are not JSON: {e}")

    def _refuse(self, why: str) -> NoReturn:
        self._row.refuse(why)


def _shown(call: ToolCall) -> str:
    return f"{call.name} ({call.id})" if call.id else call.name


def _is_empty(value: Any) -> bool:
    """Return whether the value is one that tables and services write for "nothing"."""
    return value is None or value is False or value in ("", [], {})
