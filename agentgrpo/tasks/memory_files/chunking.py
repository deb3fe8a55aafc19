"""Texts as chunks of so many words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agentgrpo.tasks.memory_files.document import Cut, Document, Unit

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_STOP = "。！？"
_WORD = re.compile(rf"[{_CJK}][{_STOP}]*|[^\s{_CJK}{_STOP}]+[{_STOP}]*|[{_STOP}]+")
_SENTENCE_END = re.compile(rf"(?<=[.!?])[\"')\]]*\s+|(?<=[{_STOP}])(?![{_STOP}])|\n+")

Piece = tuple[str, int]
"""Text, and its words."""


def num_words(text: str) -> int:
    """Words between white space; of scripts that write none between words, characters. A language model's tokens are
    about 1.3 times as many in English."""
    return sum(1 for _ in _WORD.finditer(text))


def cut_text(text: str, limit: int) -> list[Piece]:
    """`text` in pieces of at most `limit` words: between sentences where it can be, else between words. Nothing but
    white space between pieces is lost."""
    if (whole := num_words(text)) <= limit:
        return [(text.strip(), whole)]
    ends = [m.end() for m in _SENTENCE_END.finditer(text)] + [len(text)]
    pieces: list[Piece] = []
    start = held = last = 0
    for end in ends:
        count = num_words(text[last:end])
        if held and held + count > limit:
            pieces.append((text[start:last].strip(), held))
            start, held = last, 0
        if count > limit:
            at = [m.start() for m in _WORD.finditer(text, last, end)]
            cuts = [*(at[i] for i in range(0, count, limit)), end]
            pieces += [(text[a:b].strip(), min(limit, count - i * limit)) for i, (a, b) in enumerate(pairwise(cuts))]
            start, held = end, 0
        else:
            held += count
        last = end
    if held:
        pieces.append((text[start:].strip(), held))
    return pieces


@dataclass(slots=True)
class Packing:
    """Chunks that are filled one unit after the other."""

    max_words: int
    max_units: int | None
    separator: str
    chunks: list[list[str]] = field(default_factory=list)
    _words: int = 0

    def needs(self, pieces: Sequence[Piece]) -> int:
        """Chunks that there will be with `pieces` added."""
        count, words, units = len(self.chunks), self._words, len(self.chunks[-1]) if self.chunks else 0
        for _, size in pieces:
            if not count or words + size > self.max_words or units == self.max_units:
                count, words, units = count + 1, 0, 0
            words, units = words + size, units + 1
        return count

    def add(self, pieces: Sequence[Piece]) -> None:
        for text, size in pieces:
            full = not self.chunks or len(self.chunks[-1]) == self.max_units
            if full or self._words + size > self.max_words:
                self.chunks.append([])
                self._words = 0
            self.chunks[-1].append(text)
            self._words += size

    @property
    def texts(self) -> list[str]:
        return [self.separator.join(chunk) for chunk in self.chunks]


def packing_of(document: Document, cut: Cut) -> Packing:
    """An empty one."""
    if document.is_chat:
        return Packing(cut.chunk_words, cut.chunk_messages, "\n")
    return Packing(cut.chunk_words, None, "\n\n")


def pieces_of(unit: Unit, cut: Cut) -> list[Piece]:
    return cut_text(unit.text, cut.chunk_words)
