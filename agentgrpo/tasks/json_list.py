"""The elements of a list in a JSON file, one after the other: a published file may be far larger than memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from agentgrpo.errors import DataError

_CHUNK = 1 << 20
_LARGEST = 64 * _CHUNK
"""Characters of one element: what is larger is no record."""
_BETWEEN = re.compile(r"[\s]*")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_HEAD = re.compile(
    r"\s*\{\s*"
    r'(?:"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)\s*,\s*)*'  # members that are neither list nor object
    r'"([Dd]ata)"\s*:\s*(?=\[)'
)


def list_of(path: Path) -> tuple[str, int] | None:
    """("", where the file's list begins), or ("data", where it begins) of a file that is one object whose first list is
    called data or Data; None for any other file, such as JSON lines. Offsets count characters."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.read(1 << 16)
    if head.lstrip()[:1] == "[":
        return "", len(head) - len(head.lstrip())
    found = _HEAD.match(head)
    return (found[1], found.end()) if found and not _is_lines(path) else None


def has_half_pair(value: Any, text: str, start: int = 0, end: int | None = None) -> bool:
    """Whether `value`, read from text[start:end], holds half a surrogate pair: "\\ud800" is valid JSON, but no text."""
    if not _HALF_PAIR.search(text, start, len(text) if end is None else end):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        return True
    return False


def _is_lines(path: Path) -> bool:
    """Whether the first line is an object, and more comes after it."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(_CHUNK)
        while line.isspace():
            line = file.readline(_CHUNK)
        try:
            json.loads(line)
        except (ValueError, RecursionError):  # also of a line that is longer
            return False
        return any(not more.isspace() for more in iter(lambda: file.readline(_CHUNK), ""))


class _Reader:
    """The text of a file from `start` on, a stretch of it at a time."""

    def __init__(self, path: Path, file: TextIO, start: int) -> None:
        self._path, self._file = path, file
        self._line, self._column = 1, 1
        """Of the first character of `text`."""
        self.text, self.at = "", 0
        self.more(start + 1)
        self.at = start

    def more(self, count: int = _CHUNK) -> bool:
        """Read on; False at the end of the file."""
        self._line, self._column = self._place(self.at)
        try:
            added = self._file.read(max(count, len(self.text) - self.at))
        except UnicodeError as e:
            raise DataError(f"{self._path}: not valid UTF-8 text ({e}); save the file as UTF-8") from None
        self.text, self.at = self.text[self.at :] + added, 0
        return bool(added)

    def skip(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            self.at = _BETWEEN.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def _place(self, at: int) -> tuple[int, int]:
        """Line and column of a position in `text`."""
        newline = self.text.rfind("\n", 0, at)
        column = at - newline if newline >= 0 else self._column + at
        return self._line + self.text.count("\n", 0, at), column

    def refuse(self, reason: str, position: int | None = None) -> NoReturn:
        at = self.at if position is None else position
        line, column = self._place(at)
        raise DataError(
            f"{self._path}, line {line}, column {column}: not valid JSON ({reason}); is this the whole file?"
        )


def elements(path: Path, start: int) -> Iterator[Any]:
    """Of the list that begins at character `start`; what comes after it is not read. Raises DataError."""
    with path.open(encoding="utf-8-sig") as file:
        reader, decoder = _Reader(path, file, start), json.JSONDecoder()
        reader.at += 1
        if reader.skip() == "]":
            return
        while True:
            yield _value(reader, decoder)
            if (mark := reader.skip()) == "]":
                return
            if mark != ",":
                reader.refuse("a comma or the end of the list is needed")
            reader.at += 1
            reader.skip()


def _value(reader: _Reader, decoder: json.JSONDecoder) -> Any:
    while True:
        before = reader.at
        try:
            value, end = decoder.raw_decode(reader.text, before)
        except json.JSONDecodeError as e:
            if len(reader.text) - before > _LARGEST or not reader.more():
                reader.refuse(e.msg, e.pos - before + reader.at)
            continue
        except (ValueError, RecursionError) as e:
            reader.refuse(str(e))
        if end < len(reader.text):
            break
        if not reader.more():  # else a number may go on
            end -= before
            break
    if has_half_pair(value, reader.text, reader.at, end):
        reader.refuse("half a surrogate pair, which is no text")
    reader.at = end
    return value
