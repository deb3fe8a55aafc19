"""Reads passages from documents and corpus files, and ranks the hits of an index."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Passage


def passage_of(document: Mapping[str, Any]) -> Passage:
    """Parse a document as servers write it: {"id", "contents"} with contents = '"Title"\\ntext', or {"id", "text",
    "title", "url"}. A missing id becomes the url, or else a hash of the text. Raises ValueError with the reason."""
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
    """Replace lone surrogates, which JSON can spell but UTF-8 cannot, by U+FFFD, so that the text can be hashed and
    written."""
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

    `nearest(n)` gives an index's n best, as scores and as positions, in any order among equals. Scores are rounded to 6
    significant digits, so that float noise decides nothing. To break ties at the cut exactly, more hits are fetched
    until the last hit is worse than the last returned one by more than `margin`: the maximum difference between the
    scores by which the index chose and the scores that `nearest` returns.
    """
    n = top_k + 8
    while True:
        n = min(n, count)
        scores, positions = nearest(n)
        rounded = {score: float(f"{score:.6g}") for score in set(scores)}
        hits = sorted(zip([-rounded[score] for score in scores], positions, strict=True))
        if len(hits) < n or n == count or hits[-1][0] - hits[top_k - 1][0] > margin:
            return [(-minus, position) for minus, position in hits[:top_k]]
        n *= 8


# --- A corpus on disk: JSON lines, plain or gzipped, of any size.

MAX_LINE_BYTES = 64 * 2**20


class CorpusFile:
    """Lines of `corpus.passage_of`; empty lines do not count. One line is in memory at a time.

    Raises DataError, with the file and the reason, if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        """Number of the last line read, 1-based."""
        try:
            self._raw: IO[bytes] = path.open("rb")
            self.size = path.stat().st_size
        except OSError as e:
            raise DataError(f"{path} cannot be read: {e.strerror}; give a file of JSON lines, plain or gzipped") from e
        magic = self._raw.read(2)
        self._raw.seek(0)
        self._lines: Any = gzip.GzipFile(fileobj=self._raw) if magic == b"\x1f\x8b" else self._raw

    def __enter__(self) -> CorpusFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    @property
    def position(self) -> int:
        """Number of bytes read of the file, out of `size`."""
        return self._raw.tell()

    def passages(self) -> Iterator[Passage]:
        """Yield the passages. Raises DataError with file, line and reason for a malformed or truncated line."""
        for line in self._texts():
            try:
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ValueError(f"a JSON {type(document).__name__}, not an object")
                passage = passage_of(document)
            except (ValueError, RecursionError) as e:
                raise self._refusal(f'{e}; a line is {{"id", "contents"}} or {{"id", "text", "title"?, "url"?}}') from e
            yield passage

    def _texts(self) -> Iterator[bytes]:
        """The lines that are not empty."""
        while True:
            self.line += 1
            try:
                line: bytes = self._lines.readline(MAX_LINE_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as e:
                raise self._refusal(f"{e}; the file is damaged or was cut off: fetch it again") from e
            if not line:
                return
            if len(line) == MAX_LINE_BYTES:
                raise self._refusal(f"longer than {MAX_LINE_BYTES // 2**20} MiB; a passage a line is allowed")
            if line.strip():
                yield line

    def _refusal(self, reason: str) -> DataError:
        return DataError(f"{self.path}, line {self.line}: {reason}")
