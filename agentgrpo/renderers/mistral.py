"""Mistral, v3 tokenizers: calls as one JSON array, each with an id of nine letters and digits.

    [TOOL_CALLS] [{"name": "lookup", "arguments": {"key": "nut"}, "id": "a1b2c3d4e"}]</s>
    [TOOL_RESULTS] {"content": 41, "call_id": "a1b2c3d4e"}[/TOOL_RESULTS]

(on one line). A call without a valid id gets one that depends on its place and content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn
from agentgrpo.core.types import ToolCall
from agentgrpo.renderers.calls import UnreadableCall, call_of, kind_of, malformed, read_json, shown, written
from agentgrpo.renderers.family import ChatFamily, Markup, Span, spelled

CALLS = "[TOOL_CALLS]"
ARGUMENTS = ("arguments", "parameters")
_ID = re.compile("[A-Za-z0-9]{9}", re.ASCII)
_SPACED = Markup(
    end="</s>",
    opener="",
    reply=('[TOOL_RESULTS] {"content": ', ', "call_id": "{id}"}[/TOOL_RESULTS]'),
    word=("[INST] ", "[/INST]"),
    calls=f"{CALLS} [",
)
_TIGHT = replace(
    _SPACED,
    reply=('[TOOL_RESULTS]{"content": ', ', "call_id": "{id}"}[/TOOL_RESULTS]'),
    word=("[INST]", "[/INST]"),
    calls=f"{CALLS}[",
)


def read(spans: Sequence[Span], markup: Markup) -> ParsedTurn:
    calls: list[AnyCall] = []
    for span in spans[1:]:
        calls.extend(_calls(span, taken=[call.id for call in calls]))
    return ParsedTurn(calls=tuple(calls), content=spans[0].text.strip())


def write(turn: ParsedTurn, markup: Markup) -> str:
    text = turn.content + (turn.answer or "")
    if not turn.calls:
        return text
    broken = [call.text for call in turn.calls if isinstance(call, MalformedCall)]
    whole = [call for call in turn.calls if isinstance(call, ToolCall)]
    calls = [f'{written(c, ARGUMENTS[0])[:-1]}, "id": "{c.id or _made(c, i)}"}}' for i, c in enumerate(whole)]
    array = f"{markup.calls}{', '.join(calls)}]" if calls else ""
    return text + array + "".join(broken)


def _calls(span: Span, *, taken: Sequence[str]) -> list[AnyCall]:
    """Return the calls of one array. taken: ids of the turn's earlier calls."""
    whole = spelled([span])
    try:
        values, end = read_json(span.text)
        if not isinstance(values, list) or not values:
            given = "an empty one" if values == [] else kind_of(values)
            raise UnreadableCall(f"{CALLS} needs a JSON array of calls, not {given}")
        if rest := span.text[end:].strip():
            raise UnreadableCall(f"text after the calls: {shown(rest)}")
    except UnreadableCall as e:
        return [malformed(whole, str(e), id=_hash(len(taken), whole))]
    used = list(taken)
    calls: list[AnyCall] = []
    for value in values:
        calls.append(_call(value, used))
        used.append(calls[-1].id)
    return calls


def _call(value: Any, used: Sequence[str]) -> AnyCall:
    given = value.get("id") if isinstance(value, dict) else None
    fit = isinstance(given, str) and _ID.fullmatch(given) is not None and given not in used
    text = json.dumps(value, ensure_ascii=False)
    try:
        call = call_of(value, argument_keys=ARGUMENTS)
    except UnreadableCall as e:
        return malformed(f"{CALLS} [{text}]", str(e), id=str(given) if fit else _hash(len(used), text))
    return replace(call, id=str(given) if fit else _made(call, len(used)))


def _made(call: ToolCall, i: int) -> str:
    return _hash(i, written(call, ARGUMENTS[0]))


def _hash(i: int, text: str) -> str:
    return hashlib.sha256(f"{i} {text}".encode("utf-8", "replace")).hexdigest()[:9]


MISTRAL = ChatFamily(
    name="mistral",
    recognised_by=(CALLS,),
    added=("[INST]", "[/INST]", CALLS, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"),
    ends=("</s>",),
    marks=(CALLS,),
    markups=(_SPACED, _TIGHT, replace(_SPACED, quoted=True), replace(_TIGHT, quoted=True)),
    read=read,
    write=write,
)
