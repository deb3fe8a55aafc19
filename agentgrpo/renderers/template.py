"""The tokenizer's chat template, with what is said kept apart from what stands around it.

Contents are put in after the template has run, so that they are encoded as untrusted text. The same holds for any text
of a tool's description (from an MCP server, say) that spells a control token; other descriptions are left to the
template, which writes them as the model was trained to read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.protocol import ToolSpec
from agentgrpo.renderers.tokens import FastTokenizer, OutsideEncoder, TrustedEncoder
from agentgrpo.types import Message

# stand for the content of message i and for string i of the tools while the template is rendered: letters that
# templates neither trim nor test for. The quotation mark tells whether the template wrote the string as JSON.
_SLOT = "\u27e6content-{}\u27e7"
_GUARD = '\u27e6guard-{}"\u27e7'
_SLOTS = re.compile('\u27e6content-(\\d+)\u27e7|\u27e6guard-(\\d+)(\\\\?)"\u27e7')
_BRACKET = "\u27e6"
# templates that write the date would render another opening tomorrow, in the middle of a run
_DATE = date(2024, 7, 26)
_CLOCK = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


class ChatTemplate:
    """Renders with the template of `tokenizer`, which must have one."""

    def __init__(self, *, tokenizer: FastTokenizer, trusted: TrustedEncoder, outside: OutsideEncoder) -> None:
        self._tokenizer = tokenizer
        self._trusted, self._outside = trusted, outside
        template = tokenizer.chat_template
        self._template = _dated(template) if isinstance(template, str) else None  # of several, it chooses itself

    def encode(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """The opening, ready for the policy's first token. Raises ConfigError where the template refuses or loses a
        message."""
        guarded: list[str] = []
        turns = [self._turn(i, m, guarded) for i, m in enumerate(messages)]
        text = self.text(turns, tools=[self._guard(function(tool), guarded) for tool in tools])
        self._check(text, messages)
        ids: list[int] = []
        end = 0
        for slot in _SLOTS.finditer(text):
            ids.extend(self._trusted.encode(text[end : slot.start()]))
            content, string, escaped = slot.groups()
            said = guarded[int(string)] if content is None else messages[int(content)].content
            ids.extend(self._outside.encode(json.dumps(said, ensure_ascii=False)[1:-1] if escaped else said))
            end = slot.end()
        return (*ids, *self._trusted.encode(text[end:]))

    def text(self, turns: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (), opened: bool = True) -> str:
        """What the template makes of chat-completion messages; `opened`: up to where the policy's turn begins."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(turn) for turn in turns],
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=opened,
                    chat_template=self._template,
                    date_string=_DATE.strftime("%d %b %Y"),
                )
            )
        except Exception as e:  # templates refuse by raising whatever they like
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise ConfigError(
                f"the chat template refuses messages of roles {roles}: {e}; give roles it knows or choose another "
                "renderer"
            ) from e

    def _turn(self, i: int, message: Message, guarded: list[str]) -> dict[str, Any]:
        if not message.tool_calls:
            return {"role": message.role, "content": _SLOT.format(i)}
        calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in message.tool_calls]
        return {
            "role": message.role,
            "content": _SLOT.format(i) if message.content else "",
            "tool_calls": [
                {"type": "function", "id": call.id, "function": self._guard(c, guarded)}
                for call, c in zip(message.tool_calls, calls, strict=True)
            ],
        }

    def _guard(self, value: Any, guarded: list[str]) -> Any:
        """`value` with a slot for each string that spells a control token; the strings are added to `guarded`."""
        if isinstance(value, str):
            if self._harmless(value):
                return value
            guarded.append(value)
            return _GUARD.format(len(guarded) - 1)
        if isinstance(value, Mapping):
            if hostile := [key for key in value if not self._harmless(str(key))]:
                raise ConfigError(f"tool: the name {hostile[0]!r} spells a control token of this tokenizer; rename it")
            return {key: self._guard(item, guarded) for key, item in value.items()}
        return [self._guard(item, guarded) for item in value] if isinstance(value, (list, tuple)) else value

    def _harmless(self, text: str) -> bool:
        return _BRACKET not in text and self._outside.protected.isdisjoint(self._trusted.encode(text))

    @staticmethod
    def _check(text: str, messages: Sequence[Message]) -> None:
        shown = [slot[1] for slot in _SLOTS.finditer(text) if slot[1] is not None]
        if shown != [str(i) for i, m in enumerate(messages) if m.content or not m.tool_calls]:
            raise ConfigError(
                "the chat template does not show each of the messages (roles "
                f"{', '.join(m.role for m in messages)}) once and in order; it must: give roles it knows or choose "
                "another renderer"
            )


def function(tool: ToolSpec) -> dict[str, Any]:
    """The tool as chat templates take it."""
    parts = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": parts}


def _dated(template: str) -> str:
    """The template with a clock that stands still."""
    dates = {found[2]: _DATE.strftime(found[2]) for found in _CLOCK.finditer(template)}
    if not dates:
        return template
    return (
        f'{{% macro strftime_now(format) %}}{{{{ {json.dumps(dates)}[format] }}}}{{% endmacro %}}{{{{ "" }}}}{template}'
    )
