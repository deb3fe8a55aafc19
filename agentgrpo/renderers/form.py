"""The form of a turn: a JSON text of a schema, a call, or either; and the grammar that holds a turn to it.

A renderer's own `write` says how the family spells an answer and a call: the grammar is that text, with the JSON that
the policy chooses in the place of a marker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ParsedTurn, ToolSpec
from agentgrpo.core.types import Piece, ToolCall
from agentgrpo.renderers.base import Renderer, ToolRenderer

_KEY = "\u27e6json\u27e7"
_MARKER = json.dumps({_KEY: 0}, ensure_ascii=False)
_SPACE = r" |\n {0,24}"
"""White space between the parts of a JSON text: enough for every usual way to write one, and never endless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForm:
    schema: Mapping[str, Any] | None
    """JSON schema of the text; None = the turn is a call."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools of which the turn may be a call; the schema of each holds its arguments."""


def grammar_of(form: TurnForm, renderer: Renderer, *, has_tools: bool) -> str:
    """The grammar of a turn, as engines.grammar reads it. has_tools: the conversation was opened with tools, so the
    turn is written in the family's way; else it is the JSON text alone. Raises ConfigError if the renderer does not
    write the arguments of calls as JSON objects."""
    rules: list[str] = []
    if form.schema is not None:
        rules.append(_around(_answer(renderer, has_tools=has_tools), form.schema, renderer))
    for tool in form.tools:
        call = ParsedTurn(calls=(ToolCall(name=tool.name, arguments={_KEY: 0}),))
        if not has_tools or _MARKER not in (written := _of_tools(renderer).write(call)):
            raise ConfigError(
                f"a forced call of {tool.name!r}: this renderer does not write arguments as a JSON object, so no turn "
                "can be held to a call; leave tool_choice out, or choose another renderer"
            )
        rules.append(_around(written, tool.parameters, renderer))
    turns = " | ".join(f"turn{i}" for i in range(len(rules)))
    return "\n".join([f"start: {turns}", *(f"turn{i}: {rule}" for i, rule in enumerate(rules)), ""])


def _answer(renderer: Renderer, *, has_tools: bool) -> str:
    if has_tools:
        return _of_tools(renderer).write(ParsedTurn(answer=_MARKER))
    return _MARKER + renderer.decode(renderer.stop_token_ids[:1])


def _of_tools(renderer: Renderer) -> ToolRenderer:
    return cast(ToolRenderer, renderer)


def _around(written: str, schema: Mapping[str, Any], renderer: Renderer) -> str:
    """The rule of a text that has one marker."""
    before, _, after = written.partition(_MARKER)
    spaced = {"x-guidance": {"whitespace_pattern": _SPACE}, **schema}  # a schema's own settings win
    json_text = f"%json {json.dumps(spaced)}"
    return " ".join([*_fixed(before, renderer), json_text, *_fixed(after, renderer)])


def _fixed(text: str, renderer: Renderer) -> Iterator[str]:
    """The terminals of a fixed text: control tokens by their ids, all else in whatever tokens spell it."""
    ids = renderer.encode_action(text)
    for is_control, group in groupby(ids, key=lambda i: _is_control(i, renderer)):
        run = list(group)
        if is_control:
            yield from (f"<[{i}]>" for i in run)
        else:
            yield json.dumps(renderer.decode(run), ensure_ascii=False)


def _is_control(token: int, renderer: Renderer) -> bool:
    """Whether text from outside could not spell the token."""
    return renderer.observe((Piece(renderer.decode((token,)), False),)) != (token,)
