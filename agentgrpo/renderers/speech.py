"""Converts a context for an external model, which takes text and returns text.

token ids --transcript--> text          control tokens spelled out
token ids --messages----> [Message]     cut at the ids of control tokens, which untrusted text never has
text      --said--------> token ids     the model's reply, in which it cannot write control tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from agentgrpo.core.types import Message, Piece, Role
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.choose import recognise
from agentgrpo.renderers.family import ChatFamily
from agentgrpo.renderers.qwen3 import END_THINK, THINK
from agentgrpo.renderers.tokens import FastTokenizer, added_tokens

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
"""Role in a turn's header -> role of a message; other roles, such as ipython, become the user."""
_WITH_HEADERS: Mapping[str, tuple[str, str]] = {
    "<|im_start|>": ("\n", ""),
    "<|start_header_id|>": ("<|end_header_id|>", "\n\n"),
    "<start_of_turn>": ("\n", ""),
}
"""Control string that begins a turn -> the end of the role after it, and the text before the content."""
_BRACKETS: Mapping[str, tuple[str, Role]] = {
    "[AVAILABLE_TOOLS]": ("[/AVAILABLE_TOOLS]", "system"),
    "[INST]": ("[/INST]", "user"),
    "[TOOL_RESULTS]": ("[/TOOL_RESULTS]", "user"),
}
"""Mistral's opening control string -> the closing one, and the role. Text outside them is the policy's."""


class _Turn(NamedTuple):
    role: Role
    text: str
    is_whole: bool


class Speech:
    """Converts the contexts of one renderer."""

    def __init__(self, renderer: Renderer, tokenizer: FastTokenizer) -> None:
        self._renderer = renderer
        self._is_chat = isinstance(renderer, ChatRenderer)
        family = renderer.family if isinstance(renderer, ChatRenderer) else recognise(tokenizer)
        added = added_tokens(tokenizer)
        self._controls = {added[text]: text for text in _controls(family) if text in added}
        self._ends = frozenset(family.ends if family else ())
        self._marks = {m: added[m] for m in (family.marks if self._is_chat and family else ()) if m in added}

    def transcript(self, token_ids: Sequence[int]) -> str:
        return self._renderer.decode(token_ids)

    def messages(self, token_ids: Sequence[int]) -> list[Message]:
        """Return the turns before the policy's, if the renderer has chat turns. Otherwise return one user message with
        the whole text so far, because not every endpoint can continue an assistant turn."""
        turns = [t for t in self._turns(token_ids) if t.text.strip()]
        if self._is_chat and turns and turns[-1].text.strip() == THINK:
            turns.pop()
        if self._is_chat and turns and turns[-1].is_whole:
            return [Message(role=t.role, content=t.text) for t in turns]
        text = "\n".join(t.text for t in turns) if turns else self.transcript(token_ids)
        return [Message(role="user", content=text)]

    def said(self, text: str, *, after: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of an external model's turn after a context. The only control tokens in it are the marks
        of calls and reasoning of the renderer's family, as a policy would sample them."""
        turns = list(self._turns(after)) if self._is_chat else []
        if turns and turns[-1].text.strip() == THINK and END_THINK not in text:
            text = f"\n{END_THINK}\n\n{text}"  # the context opened the reasoning, which the model was not asked for
        ids: list[int] = []
        for piece in _cut(text, self._marks):
            ids += [self._marks[piece]] if piece in self._marks else self._renderer.observe((Piece(piece, False),))
        return tuple(ids)

    def _turns(self, token_ids: Sequence[int]) -> Iterator[_Turn]:
        """Yield the turns; none if the context has no control tokens of the family."""
        pieces: list[tuple[str, list[int]]] = [("", [])]
        for i in token_ids:
            if i in self._controls:
                pieces.append((self._controls[i], []))
            else:
                pieces[-1][1].append(i)
        spans = [(control, self._renderer.decode(ids)) for control, ids in pieces]
        if any(control in _BRACKETS for control, _ in spans):
            yield from self._in_brackets(spans)
        elif len(spans) > 1:
            yield from self._with_headers(spans)

    def _with_headers(self, spans: Sequence[tuple[str, str]]) -> Iterator[_Turn]:
        for i, (control, text) in enumerate(spans):
            if control not in _WITH_HEADERS:
                continue
            separator, before = _WITH_HEADERS[control]
            following = [c for c, _ in spans[i + 1 :]]
            if following[:1] == [separator]:  # the role's end is a control token itself
                role, (_, content) = text, spans[i + 1]
                following = following[1:]
            else:
                role, _, content = text.partition(separator)
            is_whole = bool(following) and following[0] in self._ends
            yield _Turn(_ROLES.get(role.strip(), "user"), content.removeprefix(before), is_whole)

    def _in_brackets(self, spans: Sequence[tuple[str, str]]) -> Iterator[_Turn]:
        closing = {end for end, _ in _BRACKETS.values()}
        for i, (control, text) in enumerate(spans):
            if control in _BRACKETS:
                end, role = _BRACKETS[control]
                yield _Turn(role, text.strip(), spans[i + 1 : i + 2] != [] and spans[i + 1][0] == end)
            elif control in closing and text.strip():
                yield _Turn("assistant", text.strip(), spans[i + 1 : i + 2] != [] and spans[i + 1][0] in self._ends)


def _controls(family: ChatFamily | None) -> set[str]:
    """Return the control strings at which a context is cut, without control strings inside a turn, such as a call's."""
    if family is None:
        return set()
    heads = {c for c in family.added if c in _WITH_HEADERS or c in _BRACKETS}
    after = {text for c in heads for text in (_WITH_HEADERS.get(c) or _BRACKETS[c])[:1]}
    return {*heads, *after, *family.ends, *(["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"] if "[INST]" in heads else [])}


def _cut(text: str, marks: Mapping[str, int]) -> Iterator[str]:
    """Yield `text` in pieces; each mark is a piece."""
    while text:
        at, mark = min(((text.find(m), m) for m in marks if m in text), default=(len(text), ""))
        if at:
            yield text[:at]
        if mark:
            yield mark
        text = text[at + len(mark) :]
