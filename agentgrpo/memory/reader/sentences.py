"""Documents as sentences and words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from agentgrpo.types import Passage

_END = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_REMEMBERED = 2**16


def in_sentences(documents: Sequence[Passage]) -> list[Passage]:
    """Raw chunks (no title) cut into sentences, in their order; entries stay whole."""
    return [piece for document in documents for piece in ([document] if document.title else _cut(document))]


@lru_cache(maxsize=_REMEMBERED)
def words_of(text: str) -> tuple[str, ...]:
    """As they are spelt, without the punctuation around them."""
    return tuple(_WORD.findall(text))


def _cut(document: Passage) -> list[Passage]:
    return [replace(document, text=text) for text in _sentences(document.text)]


@lru_cache(maxsize=_REMEMBERED)
def _sentences(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in _END.split(text) if piece.strip())
