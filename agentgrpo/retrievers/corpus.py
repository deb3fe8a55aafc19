"""Passages on their way in: from the documents of a server, and ranked out of an index."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgrpo.types import Passage


def passage_of(document: Mapping[str, Any]) -> Passage:
    """A document as servers write it: {"id", "contents"} with contents = '"Title"\\ntext', or {"id", "text", "title",
    "url"}. A missing id becomes the url, or else a hash of the text. Raises ValueError with the reason."""
    fields: dict[str, str] = {}
    for name in ("contents", "text", "title", "url"):
        value = document.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is a JSON {type(value).__name__}, not a string")
        fields[name] = well_formed(value or "")
    title, text = _title_and_text(fields["contents"])
    title, text = fields["title"] or title, fields["text"] or text
    if not (title + text).strip():
        raise ValueError("no text (or contents)")
    id = document.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | None):
        raise ValueError(f"id is a JSON {type(id).__name__}, not a string or an integer")
    if id is None or id == "":
        id = fields["url"] or hashlib.blake2b(f"{title}\n{text}".encode(), digest_size=16).hexdigest()
    return Passage(id=well_formed(str(id)), text=text, title=title, url=fields["url"])


def _title_and_text(contents: str) -> tuple[str, str]:
    first, newline, rest = contents.partition("\n")
    first = first.rstrip("\r")
    if newline and len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    return "", contents


def well_formed(text: str) -> str:
    """Lone surrogates, which JSON can spell but UTF-8 cannot, become U+FFFD: the text can be hashed and written."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def searchable_text(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def best_passages(
    passages: Sequence[Passage], nearest: Callable[[int], tuple[Sequence[float], Sequence[int]]], top_k: int
) -> list[Passage]:
    """The top_k passages by score, equal scores in the order of `passages`; see best_positions."""
    best = best_positions(len(passages), nearest, top_k)
    return [dataclasses.replace(passages[position], score=score) for score, position in best]


def best_positions(
    count: int,
    nearest: Callable[[int], tuple[Sequence[float], Sequence[int]]],
    top_k: int,
    *,
    margin: float = 0.0,
) -> list[tuple[float, int]]:
    """The scores and positions of the top_k of `count` passages, equal scores in the order of positions.

    `nearest(n)` gives an index's n best, as scores and as positions, in any order among equals. Scores count to 6
    significant digits, so that float noise decides nothing; to break ties at the cut exactly, more is fetched until
    the last hit is worse than the last one returned, by more than `margin`: how far the scores by which the index has
    chosen may be from those that it gives."""
    n = top_k + 8
    while True:
        n = min(n, count)
        scores, positions = nearest(n)
        rounded = {score: float(f"{score:.6g}") for score in set(scores)}
        hits = sorted(zip([-rounded[score] for score in scores], positions, strict=True))
        if len(hits) < n or n == count or hits[-1][0] - hits[top_k - 1][0] > margin:
            return [(-minus, position) for minus, position in hits[:top_k]]
        n *= 8
