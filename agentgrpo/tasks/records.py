"""JSON, JSON lines, parquet and CSV files whose every value knows where it stands. Whatever is wrong is a DataError
that names file, position, reason and what to do."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Passage
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.tables import ParquetTable, Table

# --- Reading users' JSON lines files. Whatever is wrong with a line is a DataError that names file, line and reason.

_QUOTED_TITLE = re.compile(r'"(.*)"\r?\n(.+)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRow:
    """One line of a file: a JSON object."""

    path: Path
    line: int
    """1-based."""
    values: Mapping[str, Any]

    def refuse(self, reason: str) -> NoReturn:
        raise DataError(f"{self.path}, line {self.line}: {reason}")

    def text(self, key: str) -> str:
        """A non-empty string, without surrounding white space."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            self.refuse(f"'{key}' is {_shown(value)}; it must be a non-empty string")
        return value.strip()

    def optional_text(self, key: str) -> str:
        """A string, "" when the key is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"'{key}' is {_shown(value)}; it must be a string, or left out")
        return (value or "").strip()

    def id(self, key: str = "id") -> str:
        """A string or an integer, as a string."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(key)


def read_rows(path: str | Path, what: str) -> Iterator[JsonRow]:
    """The objects of a JSON lines file in order; blank lines are skipped. `what` names the file in errors."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"{what}: '{path}' is not a file; give the path of a JSON lines file")
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield JsonRow(path=path, line=number, values=_object(path, number, raw))


def _object(path: Path, number: int, raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # "\ud800" is valid JSON, but no text
    except UnicodeError:
        raise DataError(f"{path}, line {number}: not valid UTF-8 text; save the file as UTF-8") from None
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}, line {number}: not valid JSON ({e}); write one object per line") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {number}: {_shown(value)} is not an object; write one object per line")
    return value


def read_passages(path: str | Path) -> tuple[Passage, ...]:
    """A corpus: lines {"id", "text", "title"?, "url"?}, or {"id", "contents"} with contents = '"Title"\ntext'. Raises
    DataError, also for an empty file or an id used twice."""
    passages: dict[str, Passage] = {}
    lines: dict[str, int] = {}
    for row in read_rows(path, "corpus"):
        id = row.id()
        if id in passages:
            row.refuse(f"id '{id}' was used in line {lines[id]} already; ids must be unique")
        title, text = row.optional_text("title"), row.text("contents" if "contents" in row.values else "text")
        if "contents" in row.values and (quoted := _QUOTED_TITLE.match(text)):
            title, text = quoted[1], quoted[2]
        passages[id] = Passage(id=id, text=text, title=title, url=row.optional_text("url"))
        lines[id] = row.line
    if not passages:
        raise DataError(f"corpus: '{path}' has no passages; write one object with 'id' and 'text' per line")
    return tuple(passages.values())


def read_thesaurus(path: str | Path) -> dict[str, list[str]]:
    """A JSON object, word -> list of words. Raises DataError for anything else."""
    try:
        entries = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as e:
        raise DataError(f"thesaurus '{path}': {e}; give a JSON file that holds an object, word -> list of words") from e
    if not isinstance(entries, dict) or not all(
        isinstance(words, list) and all(isinstance(w, str) for w in words) for words in entries.values()
    ):
        raise DataError(f'thesaurus \'{path}\' is no object of lists of words; write {{"word": ["other", ...], ...}}')
    return entries


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- The elements of a list in a JSON file, one after the other: a published file may be far larger than memory.

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


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a file."""

    path: Path
    at: str
    """Such as "line 3" or "data[0].paragraphs[2]"."""
    value: Any

    def refuse(self, reason: str) -> NoReturn:
        raise DataError(f"{self.where}: {reason}")

    @property
    def where(self) -> str:
        return f"{self.path}, {self.at or 'top level'}"

    def has(self, key: str) -> bool:
        """Null counts as absent."""
        return self.object().get(key) is not None

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.refuse(f"{shown(self.value)} stands where an object is needed; compare it with the published format")
        return self.value

    def get(self, key: str) -> Node:
        """Its value is None where the key is absent."""
        return Node(self.path, f"{self.at}.{key}".lstrip("."), self.object().get(key))

    def list(self, key: str) -> Iterator[Node]:
        """The elements of a list."""
        return self.get(key).elements()

    def elements(self) -> Iterator[Node]:
        if not isinstance(self.value, list):
            self.refuse(f"{shown(self.value)}; a list is needed")
        for i, value in enumerate(self.value):
            yield Node(self.path, f"{self.at}[{i}]", value)

    def members(self) -> Iterator[tuple[str, Node]]:
        """Key and value of an object, in order."""
        for key in self.object():
            yield key, self.get(key)

    def text(self, key: str) -> str:
        """Not empty, without surrounding white space."""
        return self.get(key).string()

    def string(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            self.refuse(f"{shown(self.value)}; a text that is not empty is needed")
        return self.value.strip()

    def optional_text(self, key: str) -> str:
        """ "" where it is absent; numbers are written out."""
        value = self.object().get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if value is not None and not isinstance(value, str):
            self.get(key).refuse(f"{shown(value)}; a text is needed, or leave '{key}' out")
        return (value or "").strip()

    def answers(self, *keys: str) -> tuple[str, ...]:
        """Of the first of `keys` that is there: a text or number, or a list of such."""
        key = next((key for key in keys if self.has(key)), keys[0])
        value = self.object().get(key)
        given = value if isinstance(value, list) else [value]
        texts = tuple(str(a).strip() for a in given if _is_answer(a))
        if len(texts) != len(given) or not texts or not all(texts):
            self.refuse(f"'{key}' is {shown(value)}; a text that is not empty is needed, or a list of such")
        return texts

    def split(self, of_file: str | None) -> str | None:
        """Its key 'split', else that of the file; an empty cell of a table is none."""
        given = self.object().get("split")
        if given is None or given == "":
            return of_file
        if given not in SPLITS:
            self.refuse(f"'split' is {shown(given)}; {', '.join(SPLITS)} are allowed, or leave it out")
        return str(given)


def read_json(path: Path) -> Node:
    """The whole of a JSON file."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise DataError(
            f"{path}, line {e.lineno}, column {e.colno}: not valid JSON ({e.msg}); is this the whole file?"
        ) from None
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}: not readable as JSON ({e}); compare it with the published file") from None
    if has_half_pair(value, text):
        raise DataError(f"{path}: holds half a surrogate pair, which is no text; save the file as UTF-8")
    return Node(path, "", value)


def read_records(path: Path, columns: Sequence[str] | None = None) -> Iterator[Node]:
    """The objects of a list in a .json file, the rows of a .parquet file, or the objects of JSON lines in any other.
    columns: of parquet only these are read, as tables.Table.rows says."""
    if path.suffix == ".parquet":
        yield from rows_of(path, ParquetTable(path), columns)
    elif path.suffix == ".json":
        yield from _json_records(path)
    else:
        for row in read_rows(path, "task.path"):
            yield Node(row.path, f"line {row.line}", row.values)


def rows_of(path: Path, table: Table, columns: Sequence[str] | None = None) -> Iterator[Node]:
    """Rows of a table as objects, the first one being row 1."""
    for number, row in enumerate(table.rows(columns), start=1):
        yield Node(path, f"row {number}", row)


def _json_records(path: Path) -> Iterator[Node]:
    """Of a list, of the list called data of an object, or of JSON lines: data sets come as any of these."""
    if not path.is_file():
        raise DataError(f"'{path}' is not a file; give the path of one")
    found = list_of(path)
    if found is None:
        for row in read_rows(path, "task.path"):
            yield Node(row.path, f"line {row.line}", row.values)
        return
    key, start = found
    for i, value in enumerate(elements(path, start)):
        yield Node(path, f"{key}[{i}]", value)


def read_table(path: Path, text: str) -> Iterator[Node]:
    """The rows of a CSV file with a header, as objects of texts; it is separated by what its header has most of."""
    header = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    try:
        for row in rows:
            node = Node(path, f"line {rows.line_num}", row)
            if None in row or None in row.values():
                columns = len(rows.fieldnames or ())
                node.refuse(f"not {columns} columns as the header has; check the quotes of this and the lines before")
            yield node
    except csv.Error as e:
        raise DataError(f"{path}, line {rows.line_num}: not readable as CSV ({e}); check the quotes") from None


def read_text(path: Path, fallback: str | None = None) -> str:
    """A file as text: UTF-8, or else `fallback`, an encoding that reads everything."""
    if not path.is_file():
        raise DataError(f"'{path}' is not a file; give the path of one")
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeError as e:
        if fallback is None:
            raise DataError(f"{path}: not valid UTF-8 text ({e}); save the file as UTF-8") from None
        return raw.decode(fallback)


def _is_answer(value: object) -> bool:
    """A text or a number; NaN is what tables write for none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number or isinstance(value, str)


def shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
