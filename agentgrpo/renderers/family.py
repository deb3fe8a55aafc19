"""The format of a family of chat models: how it writes calls, and the markup around replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from agentgrpo.core.messages import AnyCall, ParsedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """The fixed texts that the environment adds after a sampled turn: `end` if the turn lacks it; then replies[0] +
    (reply[0] TEXT reply[1], joined by `between`) + replies[1], or word[0] TEXT word[1]; then `opener`."""

    end: str
    opener: str
    """The beginning of the policy's turn."""
    reply: tuple[str, str]
    """Markup around each reply; "{id}" stands for the id of its call."""
    replies: tuple[str, str] = ("", "")
    between: str = ""
    word: tuple[str, str]
    """Markup around an observation that answers no call: a user message."""
    quoted: bool = False
    """The text of a reply is written as a JSON string."""
    calls: str = ""
    """Text that the policy writes before its calls, if the family has variants."""


class Span(NamedTuple):
    """Sampled text after one of the family's marks; "" before the first."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFamily:
    name: str
    recognised_by: tuple[str, ...]
    """Strings that all of its chat templates contain; no template of a later family in renderers.choose contains all of
    them."""
    added: tuple[str, ...]
    """Control strings that must be added tokens of the tokenizer, since untrusted text could spell them otherwise."""
    ends: tuple[str, ...]
    """Control strings that end a turn; the first is Markup.end. Strings that the tokenizer lacks are ignored."""
    marks: tuple[str, ...]
    """Control strings that tell calls and reasoning from text. If they are added tokens, only these tokens count."""
    markups: tuple[Markup, ...]
    """The published variants; the first one that the chat template agrees with is used."""
    has_tools: bool = True
    """The chat template takes tools, tool calls and tool results."""
    read: Callable[[Sequence[Span], Markup], ParsedTurn]
    """Reads a turn, without deciding whether its content is an answer. Never raises. The first span's mark is ""."""
    write: Callable[[ParsedTurn, Markup], str]
    """Writes the text that `read` reads as the given turn, up to Markup.end."""


class Splitter:
    """Cuts sampled tokens at the family's marks."""

    def __init__(
        self, marks: Iterable[str], *, added: Callable[[str], int | None], decode: Callable[[Sequence[int]], str]
    ) -> None:
        """added(mark): the mark's token id; None if it is plain text to the tokenizer and must be found as text."""
        ids = {mark: added(mark) for mark in marks}
        self._by_id = {i: mark for mark, i in ids.items() if i is not None}
        plain = [re.escape(mark) for mark, i in ids.items() if i is None]
        self._plain = re.compile(f"({'|'.join(plain)})") if plain else None
        self._decode = decode

    def split(self, token_ids: Sequence[int]) -> tuple[Span, ...]:
        cut: list[tuple[str, list[int]]] = [("", [])]
        for i in token_ids:
            if i in self._by_id:
                cut.append((self._by_id[i], []))
            else:
                cut[-1][1].append(i)
        return tuple(chain.from_iterable(self._found(mark, self._decode(ids)) for mark, ids in cut))

    def _found(self, mark: str, text: str) -> Iterable[Span]:
        if self._plain is None:
            return (Span(mark, text),)
        first, *rest = self._plain.split(text)  # text, mark, text, mark, ...
        return (Span(mark, first), *map(Span, rest[::2], rest[1::2]))


def in_lines(turn: ParsedTurn, written: Callable[[AnyCall], str]) -> str:
    """Return content, answer and calls, each on its own line; empty parts are left out."""
    texts = [turn.content, turn.answer or "", *map(written, turn.calls)]
    return "\n".join(text for text in texts if text)


def spelled(spans: Iterable[Span]) -> str:
    """Return the text as it was sampled."""
    return "".join(chain.from_iterable(spans))
