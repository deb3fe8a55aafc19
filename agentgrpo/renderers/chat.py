"""The renderer of families with chat turns: the tokenizer's own template opens a context, appending continues it.

    opening  = chat template(messages, tools), up to where the policy's turn begins
    context  = opening + A0 (sampled) + end, replies, opener + A1 (sampled) + ...

Rendering the whole conversation again for every turn would change tokens that the policy has seen or sampled: templates
drop reasoning and move the tools, and text may tokenise differently from how it was sampled. The appended text is fixed
for the family, and a probe at construction compares it with the template's own output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any

from agentgrpo.core.bounded import bounded
from agentgrpo.core.errors import ConfigError, text_of
from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.renderers import describe
from agentgrpo.renderers.family import ChatFamily, Markup, Splitter
from agentgrpo.renderers.tokens import (
    FastTokenizer,
    OutsideEncoder,
    TrustedEncoder,
    added_tokens,
    encode_pieces,
    framed,
)

# --- The tokenizer's chat template, with message contents kept apart from the markup around them.
#
# Contents are put in after the template has run, so that they are encoded as untrusted text. So is any text
# of a tool's description (from an MCP server, say) that spells a control token; other descriptions are left to the
# template, which writes them as the model was trained to read them.

# these stand for the content of message i and for string i of the tools while the template is rendered: letters that
# templates neither trim nor test for. The quotation mark tells whether the template wrote the string as JSON.
_SLOT = "\u27e6content-{}\u27e7"
_GUARD = '\u27e6guard-{}"\u27e7'
_SLOTS = re.compile('\u27e6content-(\\d+)\u27e7|\u27e6guard-(\\d+)(\\\\?)"\u27e7')
_BRACKET = "\u27e6"
# templates that write the date would render a different opening tomorrow, in the middle of a run
_DATE = date(2024, 7, 26)
_CLOCK = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


#
# A template is a program that came with the weights, and may loop for as long as it likes: it runs in a child process
# (core.bounded), and its outputs are cached. Contents are not passed to it, so there are few outputs.


class ChatTemplate:
    """Renders with the template of `tokenizer`, which must have one."""

    def __init__(self, *, tokenizer: FastTokenizer, trusted: TrustedEncoder, outside: OutsideEncoder) -> None:
        self._tokenizer = tokenizer
        self._trusted, self._outside = trusted, outside
        template = tokenizer.chat_template
        self._template = _dated(template) if isinstance(template, str) else None  # of several, the tokenizer chooses
        self._made = _made_by(json.dumps([template, tokenizer.special_tokens_map]))
        self._is_child = False
        self._work: Callable[[], object] | None = None

    def encode(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """Return the opening's token ids, ready for the policy's first token. Raises ConfigError if the template
        refuses or drops a message."""
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
        """Return the template's text for chat-completion messages. opened: include the beginning of the policy's turn.
        Raises ConfigError if the template refuses, DataError if it does not come to an end."""
        given = json.dumps([list(turns), list(tools), opened])
        if given not in self._made:
            if self._is_child:
                self._made[given] = self._make(given)
            else:
                self._ask(self._work or (lambda: self.text(turns, tools=tools, opened=opened)))
        text, refusal = self._made[given]
        if refusal is not None:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise ConfigError(
                f"the chat template refuses messages of roles {roles}: {refusal}; give roles it knows or choose "
                "another renderer"
            )
        return text

    def together(self, work: Callable[[], object]) -> None:
        """Run `work`; a single child process makes all its texts."""
        self._work = work
        try:
            work()
        finally:
            self._work = None

    def _ask(self, work: Callable[[], object]) -> None:
        """Make the texts that `work` asks for in a child process. Raises DataError like `text`."""

        def texts() -> str:
            self._is_child = True
            with suppress(ConfigError):
                work()
            return json.dumps(self._made)

        self._made |= {given: tuple(made) for given, made in json.loads(bounded(texts, "the chat template")).items()}

    def _make(self, given: str) -> tuple[str, str | None]:
        """Return the text and None, or "" and the reason for the refusal."""
        turns, tools, opened = json.loads(given)
        try:
            text = self._tokenizer.apply_chat_template(
                turns,
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=opened,
                chat_template=self._template,
                date_string=_DATE.strftime("%d %b %Y"),
            )
        except MemoryError:
            raise
        except Exception as e:  # templates refuse by raising any exception
            return "", text_of(e)
        return str(text), None

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
        """Return `value` with a slot for each string that spells a control token; the strings are added to
        `guarded`."""
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


@lru_cache(maxsize=64)
def _made_by(template: str) -> dict[str, tuple[str, str | None]]:
    """The cache of a template, input -> output, shared by all its renderers."""
    return {}


def function(tool: ToolSpec) -> dict[str, Any]:
    """Return the tool as chat templates take it."""
    parts = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": parts}


def _dated(template: str) -> str:
    """Return the template with a fixed date."""
    dates = {found[2]: _DATE.strftime(found[2]) for found in _CLOCK.finditer(template)}
    if not dates:
        return template
    return (
        f'{{% macro strftime_now(format) %}}{{{{ {json.dumps(dates)}[format] }}}}{{% endmacro %}}{{{{ "" }}}}{template}'
    )


_ASK = {"role": "user", "content": "probe"}
_SPEC = ToolSpec(
    name="probe",
    description="Probe.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
_REPLY = '"41"\nprobe'  # tells whether results are written as JSON strings


class ChatRenderer:
    """Implements renderers.base.ToolRenderer for one family."""

    stop_strings: tuple[str, ...] = ()
    in_turns = True

    def __init__(self, *, tokenizer: FastTokenizer, family: ChatFamily) -> None:
        """Raises ConfigError if the tokenizer lacks the family's control tokens or a chat template, and if the template
        does not continue a conversation as the family does."""
        added = added_tokens(tokenizer)
        if missing := [text for text in family.added if text not in added]:
            raise ConfigError(
                f"renderer {family.name}: this tokenizer has no added tokens {' '.join(missing)}; choose the family "
                "that the model was trained with, or react"
            )
        if not tokenizer.chat_template:
            raise ConfigError(f"renderer {family.name}: this tokenizer has no chat template; choose react")
        self.family = family
        self._trusted = TrustedEncoder(tokenizer)
        self.longest_token = self._trusted.longest_token
        self._outside = OutsideEncoder(tokenizer, control={*family.added, *family.ends, *family.marks})
        self._template = ChatTemplate(tokenizer=tokenizer, trusted=self._trusted, outside=self._outside)
        self._ends = tuple(added[text] for text in family.ends if text in added)
        eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*self._ends, *eos)))
        self._splitter = Splitter(family.marks, added=added.get, decode=self._trusted.decode)
        self._template.together(self._probe)

    def _probe(self) -> None:
        self._system_role = self._accepts({"role": "system", "content": "probe"}, _ASK)
        self._markup = self._agreed(self._opener())

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._template.encode(messages)

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Describe tools as the template does, or in words if the template takes none."""
        if self.family.has_tools:
            return self._template.encode(messages, tools=tools)
        if tools:
            text = describe.describe(tools, describe.FENCED)
            messages = describe.put_first(text, messages, system_role=self._system_role)
        return self._template.encode(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return encode_pieces(pieces, trusted=self._trusted, outside=self._outside)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return self._trusted.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._trusted.decode(token_ids)

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Text without calls is the answer if the policy ended the turn; a turn that was cut short has no answer."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        spans = self._splitter.split(token_ids[:-1] if ended else token_ids)
        turn = self.family.read(spans, self._markup)
        if turn.calls or not ended or not turn.content:
            return turn
        return replace(turn, answer=turn.content, content="")

    def answered(self, context: str) -> list[str]:
        before, after = (re.escape(text).replace(re.escape("{id}"), ".*?") for text in self._markup.reply)
        found: list[str] = re.findall(f"{before}(.*?){after}", context, re.DOTALL)
        return [json.loads(text) for text in found] if self._markup.quoted else found

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return self.observe((*self._end(sampled), *_replies(self._markup, replies)))

    def written(self, text: str) -> str:
        return _written(self._markup, text)

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        before, after = self._markup.word
        return self.observe((*self._end(sampled), *framed(before, pieces, after + self._markup.opener)))

    def write(self, turn: ParsedTurn) -> str:
        return self.family.write(turn, self._markup) + self._markup.end

    def _end(self, sampled: Sequence[int]) -> tuple[Piece, ...]:
        """Return the end of a turn that was cut short or that ended with another token than the family's; else ()."""
        return () if sampled and sampled[-1] in self._ends else (Piece(self._markup.end, True),)

    # --- the template's own markup

    def _opener(self) -> str | None:
        """Return the text that the template adds to begin the policy's turn; None if it also changes earlier text."""
        closed = self._template.text([_ASK], opened=False)
        opened = self._template.text([_ASK])
        return opened.removeprefix(closed) if opened.startswith(closed) else None

    def _agreed(self, opener: str | None) -> Markup:
        """Return the first of the family's markups for which appending equals rendering, for a call (two, if the
        template takes two in one turn) and its replies. Only the end of the conversation is compared: the template's
        text for earlier turns is never used."""
        both = [ToolCall(name="probe", arguments={"text": text}, id=f"probe000{i}") for i, text in enumerate("ab")]
        told = [{"role": "assistant", "content": "probe"}, _ASK]
        calls = both if self._accepts(_ASK, *self._asked(both, self.family.markups[0])) else both[:1]
        differing = ""
        for markup in self.family.markups:
            if opener is not None and opener.startswith(markup.opener):
                markup = replace(markup, opener=opener)
            asked = self._asked(calls, markup)
            ours = self.family.write(ParsedTurn(calls=tuple(calls)), replace(markup, opener="")) + markup.end
            ours += "".join(p.text for p in _replies(markup, [ToolReply(call=c, text=_REPLY) for c in calls]))
            theirs = self._template.text([_ASK, *asked], tools=[function(_SPEC)] if self.family.has_tools else ())
            word = markup.end + markup.word[0] + "probe" + markup.word[1] + markup.opener
            rendered = self._template.text([_ASK, *told])
            if theirs.endswith(ours) and rendered.endswith(word):
                return markup
            differing = differing or (_difference(ours, theirs) or _difference(word, rendered))
        raise ConfigError(
            f"renderer {self.family.name}: the chat template does not continue a conversation as this family does: "
            f"{differing}; choose the family that the model was trained with, or react"
        )

    def _asked(self, calls: Sequence[ToolCall], markup: Markup) -> list[dict[str, Any]]:
        """Return the messages of a turn that makes `calls`, and of the replies."""
        if not self.family.has_tools:
            text = self.family.write(ParsedTurn(calls=tuple(calls)), markup)
            shown = "".join(p.text for p in _texts(markup, [ToolReply(call=c, text=_REPLY) for c in calls]))
            return [{"role": "assistant", "content": text}, {"role": "user", "content": shown}]
        made = [
            {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in calls
        ]
        results = [{"role": "tool", "name": c.name, "tool_call_id": c.id, "content": _REPLY} for c in calls]
        return [{"role": "assistant", "content": "", "tool_calls": made}, *results]

    def _accepts(self, *turns: dict[str, Any]) -> bool:
        try:
            self._template.text(turns)
        except ConfigError:
            return False
        return True


def _replies(markup: Markup, replies: Sequence[ToolReply]) -> Iterator[Piece]:
    """Yield the pieces from the end of a turn up to the policy's next token."""
    yield Piece(markup.replies[0], True)
    yield from _texts(markup, replies)
    yield Piece(markup.replies[1] + markup.opener, True)


def _texts(markup: Markup, replies: Sequence[ToolReply]) -> Iterator[Piece]:
    before, after = markup.reply
    for i, reply in enumerate(replies):
        yield Piece((markup.between if i else "") + before, True)
        yield Piece(_written(markup, reply.text), False)
        yield Piece(after.replace("{id}", reply.call.id), True)


def _written(markup: Markup, text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if markup.quoted else text


def _difference(ours: str, theirs: str) -> str:
    """Describe where two texts that should end alike first differ, read from the end; "" if they do not differ."""
    if theirs.endswith(ours):
        return ""
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return f"it writes {theirs[: len(theirs) - same][-40:]!r} where {ours[: len(ours) - same][-40:]!r} belongs"
