"""Passages on their way in: from a JSONL corpus, from the documents of a server, and ranked out of an index."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.errors import DataError
from agentgrpo.types import Passage


def read_corpus(path: str | Path) -> list[Passage]:
    """The passages of a JSONL file, one object a line: {"id", "contents"} with contents = '"Title"\\ntext', or
    {"id", "text", "title", "url"}, the last two optional. Blank lines are skipped, other keys ignored.

    Raises DataError with file, line and reason: unreadable file, malformed line, repeated id, no passage at all."""
    passages: dict[str, Passage] = {}
    first_line: dict[str, int] = {}
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                passage = _passage_of_line(line, f"corpus {path}, line {number}")
                if passage is None:
                    continue
                if passage.id in passages:
                    raise DataError(
                        f"corpus {path}, line {number}: the id {passage.id!r} is on line {first_line[passage.id]}; "
                        "ids must be unique; rename or remove one of the two"
                    )
                passages[passage.id], first_line[passage.id] = passage, number
    except OSError as e:
        raise DataError(f"corpus {path}: {e.strerror}; give a readable JSONL file") from e
    if not passages:
        raise DataError(f"corpus {path}: holds no passage; give at least one JSON object with id and text")
    return list(passages.values())


def _passage_of_line(line: bytes, place: str) -> Passage | None:
    try:
        text = line.decode("utf-8-sig").strip()
        if not text:
            return None
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError(f"a JSON {type(document).__name__}, not an object")
        if document.get("id") in (None, ""):
            raise ValueError("no id")
        return passage_of(document)
    except (ValueError, RecursionError) as e:
        raise DataError(
            f"{place}: {e}. Allowed is one JSON object a line with id and text (or contents), optionally title and "
            "url; mend or remove the line"
        ) from e


def passage_of(document: Mapping[str, Any]) -> Passage:
    """A document as corpora and servers write it (see read_corpus). A missing id becomes the url, or else a hash of
    the text. Raises ValueError with the reason."""
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
    """The top_k passages by score, equal scores in the order of `passages`.

    `nearest(n)` gives an index's n best, as scores and as positions in `passages`, in any order among equals. Scores
    count to 6 significant digits, so that float noise decides nothing; to break ties at the cut exactly, more is
    fetched until the last hit is worse than the last one returned."""
    n = top_k + 8
    while True:
        n = min(n, len(passages))
        scores, positions = nearest(n)
        rounded = {score: float(f"{score:.6g}") for score in set(scores)}
        hits = sorted(zip([-rounded[score] for score in scores], positions, strict=True))
        if len(hits) < n or n == len(passages) or hits[top_k - 1][0] < hits[-1][0]:
            return [dataclasses.replace(passages[position], score=-minus) for minus, position in hits[:top_k]]
        n *= 8
