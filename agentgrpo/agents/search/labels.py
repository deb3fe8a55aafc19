"""Result labels "[R1Q2D3]", which documents they name, and the citations that use them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.types import Citation, Passage

_MARKER = re.compile(r"\[R\d+Q\d+D\d+\]")
_KEY_CHARS = 512


def single_line(text: str) -> str:
    """White space folded, so that no document can break out of its line; half a surrogate pair becomes "?"."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def clean(passage: Passage) -> Passage:
    """The passage with single-line text, title and URL."""
    text, title, url = single_line(passage.text), single_line(passage.title), single_line(passage.url)
    if (text, title, url) == (passage.text, passage.title, passage.url):
        return passage
    return replace(passage, text=text, title=title, url=url)


def page_of(url: str) -> str:
    """The URL without its fragment."""
    return url.partition("#")[0]


def document_id(passage: Passage) -> str:
    """What makes two passages the same document: its id, where that is empty its URL without fragment, else its title,
    else its first 512 characters."""
    return passage.id or page_of(passage.url) or passage.title or passage.text[:_KEY_CHARS]


def strip_markers(text: str) -> str:
    """The text without citation markers (existing or not) and the white space before them, trimmed."""
    *heads, tail = _MARKER.split(text)
    return ("".join(head.rstrip() for head in heads) + tail).strip()


class Labels:
    """The documents shown so far and their markers.

    [R{round}Q{query}D{document}], 1-based: round counts the rounds that showed something, query is the place of the
    query in the turn that wrote it, document the place in what the query showed.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Passage] = {}
        """Every distinct document by its document_id, in the order shown."""
        self._round = 0
        self._by_marker: dict[str, Passage] = {}
        self._first_marker: dict[str, str] = {}

    def add_round(self, rows: Sequence[tuple[int, Sequence[Passage]]]) -> list[list[str]]:
        """Label one round's (query number, passages) rows; the markers row by row. No passage at all: no round."""
        if not any(passages for _, passages in rows):
            return [[] for _ in rows]
        self._round += 1
        return [[self._add(number, i, p) for i, p in enumerate(passages, start=1)] for number, passages in rows]

    def _add(self, query: int, document: int, passage: Passage) -> str:
        marker = f"[R{self._round}Q{query}D{document}]"
        key = document_id(passage)
        self._by_marker[marker] = passage
        self.documents.setdefault(key, passage)
        self._first_marker.setdefault(key, marker)
        return marker

    def marker_of(self, passage: Passage) -> str:
        """The first marker of a document that has been shown. Raises KeyError for another."""
        return self._first_marker[document_id(passage)]

    def marker_of_page(self, url: str) -> str | None:
        """The first marker of a document with this URL, fragments apart."""
        page = page_of(url)
        known = (key for key, passage in self.documents.items() if passage.url and page_of(passage.url) == page)
        return next((self._first_marker[key] for key in known), None)

    def cite(self, answer: str) -> tuple[Citation, ...]:
        """The existing markers in `answer`, each once, in order."""
        return tuple(
            Citation(doc_id=document_id(passage), marker=marker, text=passage.text)
            for marker in dict.fromkeys(_MARKER.findall(answer))
            if (passage := self._by_marker.get(marker)) is not None
        )

    def cited(self, citations: Sequence[Citation]) -> list[Passage]:
        """The passages behind citations that `cite` made."""
        return [self._by_marker[c.marker] for c in citations]
