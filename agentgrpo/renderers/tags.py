"""Calls as tags in plain text, for every tokenizer: the shortest format, made for tools that take a text.

    <insert> Velmor lives in Castin</insert>                          a tool whose only argument is a string
    <memory_insert>{"memory_type": "core", "content": "..."}</memory_insert>      any other tool: a JSON object
    <skip>                                                            a tool without arguments; <skip/> is read too
    <result>41</result>                                               added by the environment, one for each call

Calls follow one another with nothing between them; eos ends the turn. `tools` tells which tools take a bare text. An
unreadable tag with the name of one of `tools` is a malformed call. A tag with another name is a call if its closing tag
follows, and text otherwise. Text outside calls is content; a turn without calls is an answer.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.core.untrusted import unframed
from agentgrpo.renderers import describe
from agentgrpo.renderers.calls import UnreadableCall, malformed, read_object, shown
from agentgrpo.renderers.plain import PlainRenderer, takes_system
from agentgrpo.renderers.tokens import FastTokenizer, framed

_TAG = re.compile(r"<(/?)([A-Za-z_][\w.-]{0,63})[ \t]*(/?)>", re.ASCII)


class _Tags:
    """Every tag of a text. Finding the next tag is cheap, however many tags a policy writes and never closes."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        """known: names of tools."""
        self.all = list(_TAG.finditer(text))
        self._known = [tag for tag in self.all if tag[2] in known]
        self._by_name: dict[str, list[re.Match[str]]] = {}
        for tag in self.all:
            self._by_name.setdefault(tag[2], []).append(tag)

    def next(self, start: int, name: str) -> re.Match[str] | None:
        """Return the first tag from `start` on that is named `name` or like a known tool."""
        found = [_from(tags, start) for tags in (self._known, self._by_name.get(name, []))]
        return min((tag for tag in found if tag is not None), key=lambda tag: tag.start(), default=None)


def _from(tags: Sequence[re.Match[str]], start: int) -> re.Match[str] | None:
    place = bisect_left(tags, start, key=lambda tag: tag.start())
    return tags[place] if place < len(tags) else None


class TagsRenderer:
    """Implements renderers.base.ToolRenderer for any fast tokenizer."""

    in_turns = False

    stop_strings: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        tokenizer: FastTokenizer,
        tools: Sequence[ToolSpec] = (),
        chat_template: str = "auto",
        describe_tools: bool = False,
    ) -> None:
        """tools: the tools that will be offered. chat_template: as in PlainRenderer. describe_tools: the opening lists
        the tools and this format; a policy that was warm-started on the format needs neither. Raises ConfigError for a
        tokenizer without eos token, and for a tool whose name cannot be a tag."""
        self._plain = PlainRenderer(tokenizer=tokenizer, chat_template=chat_template)
        self.stop_token_ids, self.longest_token = self._plain.stop_token_ids, self._plain.longest_token
        if not self.stop_token_ids:
            raise ConfigError("renderer tags: this tokenizer has no eos token to end a turn with; give it one")
        self._eos = self._plain.decode(self.stop_token_ids[:1])
        for tool in tools:
            if not _TAG.fullmatch(f"<{tool.name}>"):
                raise ConfigError(
                    f"renderer tags: a tool is called {tool.name!r}; letters, digits, _, . and - are allowed, 64 at "
                    "most and a letter or _ first: rename it, or choose react"
                )
        self._forms: Mapping[str, str | None] = {tool.name: _form(tool) for tool in tools}
        self._describes = describe_tools
        self._system_role = describe_tools and takes_system(self._plain)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._plain.open(messages)

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        if self._describes and tools:
            how = "\n".join([describe.TAGS, *(self._written(_example(tool)) for tool in tools)])
            messages = describe.put_first(describe.describe(tools, how), messages, system_role=self._system_role)
        return self._plain.open(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return self._plain.observe(pieces)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return self._plain.encode_action(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._plain.decode(token_ids)

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Calls take precedence over answers. An answer counts only if eos ended it; an answer that was cut short is
        content."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        text = self.decode(token_ids[:-1] if ended else token_ids)
        calls: list[AnyCall] = []
        around: list[str] = []
        tags = _Tags(text, self._forms)
        read = 0  # text before this index belongs to a call or is in `around`
        for tag in tags.all:
            if tag.start() >= read and (found := self._call(text, tag, tags)):
                around.append(text[read : tag.start()].strip())
                calls.append(found[0])
                read = found[1]
        around.append(text[read:].strip())
        content = "\n".join(filter(None, around))
        if calls or not ended or not content:
            return ParsedTurn(calls=tuple(calls), content=content)
        return ParsedTurn(answer=content)

    def answered(self, context: str) -> list[str]:
        return re.findall("<result>(.*?)</result>", context, re.DOTALL)

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        pieces = [Piece(self._end(sampled), True)]
        for reply in replies:
            pieces += [Piece("\n<result>", True), Piece(self.written(reply.text), False), Piece("</result>", True)]
        return self.observe([*pieces, Piece("\n", True)])

    def written(self, text: str) -> str:
        """Escape the text, so that it cannot close its own tag."""
        return unframed(text, ("result",))

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return self.observe(framed(f"{self._end(sampled)}\n", pieces, "\n"))

    def write(self, turn: ParsedTurn) -> str:
        """Bare text follows its tag after a space, so that its first word is encoded as anywhere else."""
        said = turn.answer if turn.answer is not None else turn.content
        return "".join((said, *map(self._written, turn.calls), self._eos))

    def _end(self, sampled: Sequence[int]) -> str:
        return "" if sampled and sampled[-1] in self.stop_token_ids else self._eos

    def _call(self, text: str, tag: re.Match[str], tags: _Tags) -> tuple[AnyCall, int] | None:
        """Return the call that begins with `tag` and the index after it; None if no call begins there."""
        name, begin = tag[2], tag.end()
        form = self._forms.get(name)
        if tag[1]:
            return None
        if tag[3]:
            return ToolCall(name=name, arguments={}), begin
        if form == "":
            end = tags.next(begin, name)
            is_closed = end is not None and end[1] and end[2] == name and not text[begin : end.start()].strip()
            return ToolCall(name=name, arguments={}), end.end() if end is not None and is_closed else begin
        arguments, problem, after = None, "", begin
        if form is None:
            try:
                arguments, after = read_object(text, begin)
            except UnreadableCall as e:
                problem = str(e)
        end = tags.next(after, name)
        if end is None or end[2] != name or not end[1]:
            if name not in self._forms:
                return None
            stop = len(text) if end is None else end.end() if end[1] else end.start()
            before = "" if end is None else f", and {end[0]} follows"
            return malformed(text[tag.start() : stop], f"<{name}> is not closed by </{name}>{before}", name=name), stop
        inside = text[after : end.start()].strip()
        if form is not None:
            return ToolCall(name=name, arguments={form: inside}), end.end()
        if arguments is not None and inside:
            problem = f"text after the arguments: {shown(inside)}"
        if arguments is None or problem:
            return malformed(text[tag.start() : end.end()], problem, name=name), end.end()
        return ToolCall(name=name, arguments=arguments), end.end()

    def _written(self, call: AnyCall) -> str:
        if isinstance(call, MalformedCall):
            return call.text
        form = self._forms.get(call.name)
        if form == "" and not call.arguments:
            return f"<{call.name}>"
        if form and call.arguments.keys() == {form} and isinstance(call.arguments[form], str):
            return f"<{call.name}> {call.arguments[form]}</{call.name}>"
        return f"<{call.name}>{json.dumps(dict(call.arguments), ensure_ascii=False)}</{call.name}>"


def _form(tool: ToolSpec) -> str | None:
    """Return how a tool's arguments are written: "" = no arguments, a name = the bare text of that argument, None = a
    JSON object."""
    properties = tool.parameters.get("properties") or {}
    if not properties:
        return ""
    [name, *others] = properties
    return name if not others and properties[name].get("type") == "string" else None


def _example(tool: ToolSpec) -> ToolCall:
    """Return a call with the arguments' names, in capitals, as values."""
    properties = tool.parameters.get("properties") or {}
    return ToolCall(name=tool.name, arguments={name: name.upper() for name in properties})
