"""Read JSON, JSON lines, parquet and CSV files. Every value knows its position in the file. Every fault is a DataError
that names file, position, reason and remedy."""

from __future__ import annotations

import ast
import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Passage
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.tables import SPLIT_NAMES, ParquetTable, Table

# --- Files, compressed or not.

_PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
_NO_TEXT = frozenset({".xlsx", ".xls", ".ods", ".zip", ".zst", ".tar", ".tgz", ".7z", ".arrow", ".feather", ".pkl"})


_JSON_LINES = ("", ".jsonl", ".ndjson", ".json", ".txt")
"""Suffixes of files that are expected to hold JSON lines."""


def kind_of(path: Path) -> str:
    """The suffix that names a file's format, in lower case: ".csv" for a.CSV and for a.csv.gz."""
    *before, last = ["", *(suffix.lower() for suffix in path.suffixes)]
    return before[-1] if last in _PACKED and before else last


def stem_of(path: Path) -> str:
    """A file's name without the suffixes for format and compression."""
    return (path.with_suffix("") if path.suffix.lower() in _PACKED else path).stem


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes; decompress it if its suffix is .gz, .bz2 or .xz."""
    packed: BinaryIO = _PACKED.get(path.suffix.lower(), open)(path, "rb")
    return packed


def open_text(path: Path, errors: str = "strict") -> TextIO:
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors)


def _unpacked(path: Path, rows: Iterator[Node]) -> Iterator[Node]:
    try:
        yield from rows
    except _DAMAGED as e:
        raise DataError(f"{path}: cannot be unpacked ({e}); is this the whole file?") from None


# --- JSON lines.


def read_rows(path: str | Path, what: str, malformed: Malformed | None = None) -> Iterator[Node]:
    """Yield the objects of a JSON lines file in order; blank lines are skipped. `what` names the file in errors. Lines
    without an object are collected in `malformed`; without it the first such line raises DataError."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"{what}: '{path}' is not a file; give the path of a JSON lines file")
    with open_bytes(path) as file:
        lines = (line for raw in file for line in raw.splitlines())  # lines may end in CR alone
        numbered = ((number, raw) for number, raw in enumerate(lines, start=1) if raw.strip())
        read = partial(_object, path)
        yield from map(read, numbered) if malformed is None else malformed.spare(read, numbered)


def _object(path: Path, line: tuple[int, bytes]) -> Node:
    number, raw = line
    node = Node(path, f"line {number}", None)
    try:
        value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # "\ud800" is valid JSON, but no text
    except UnicodeError:
        node.refuse("not valid UTF-8 text; save the file as UTF-8")
    except (ValueError, RecursionError) as e:
        kind = kind_of(path)
        known = "" if kind in _JSON_LINES else f"; {kind} is read so, and .csv, .tsv, .json, .parquet are known"
        node.refuse(f"not valid JSON ({e}); write one object per line{known}")
    if not isinstance(value, dict):
        node.refuse(f"{shown(value)} is not an object; write one object per line, or a list into a .json file")
    return Node(path, node.at, value)


# --- Corpora and thesauri.

_QUOTED_TITLE = re.compile(r'"(.*)"\r?\n(.+)', re.DOTALL)
PASSAGE_KEYS = ("id", "text", "title", "url")


def read_passages(
    path: str | Path, keys: Mapping[str, str] | None = None, malformed: Malformed | None = None
) -> tuple[Passage, ...]:
    """Read a corpus in any format of `read_records`: {"id", "text", "title"?, "url"?}, or {"id", "contents"} with
    contents '"Title"\ntext'. keys: the file's names for PASSAGE_KEYS. Malformed rows are collected in `malformed`;
    without it a single DataError reports every malformed row. Raises DataError for a file without rows."""
    for name in keys or ():
        if name not in PASSAGE_KEYS:
            allowed = f"{', '.join(PASSAGE_KEYS)} can be renamed.{did_you_mean(name, PASSAGE_KEYS)}"
            raise ConfigError(f"task.corpus_keys.{name}; {allowed}")
    found = Malformed() if malformed is None else malformed
    before, lines = found.count, dict[str, str]()
    rows = read_records(Path(path).expanduser(), malformed=found, what="corpus")
    passages = tuple(found.spare(partial(_passage, keys or {}, lines), rows))
    if not passages and found.count == before:
        raise DataError(f"corpus: '{path}' has no passages; write one object with 'id' and 'text' per line")
    if malformed is None:
        found.refuse()
    return passages


def _passage(keys: Mapping[str, str], lines: dict[str, str], row: Node) -> Passage:
    """lines: id -> position of the passage with this id; extended here."""
    called = {name: keys.get(name, name) for name in PASSAGE_KEYS}
    has_contents = "text" not in keys and "contents" in row.object()
    id = row.id(called["id"], "task.corpus_keys.id")
    if id in lines:
        row.refuse(f"id '{id}' was used in {lines[id]} already; ids must be unique")
    text = row.required("contents" if has_contents else called["text"], "task.corpus_keys.text")
    title = row.optional_text(called["title"])
    if has_contents and (quoted := _QUOTED_TITLE.match(text)):
        title, text = quoted[1], quoted[2]
    lines[id] = row.at
    return Passage(id=id, text=text, title=title, url=row.optional_text(called["url"]))


def read_thesaurus(path: str | Path) -> dict[str, list[str]]:
    """Read a JSON object, word -> list of words. Raises DataError for anything else."""
    try:
        entries = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as e:
        raise DataError(f"thesaurus '{path}': {e}; give a JSON file that holds an object, word -> list of words") from e
    if not isinstance(entries, dict) or not all(
        isinstance(words, list) and all(isinstance(w, str) for w in words) for words in entries.values()
    ):
        raise DataError(f'thesaurus \'{path}\' is not an object of word lists; write {{"word": ["other", ...], ...}}')
    return entries


# --- Elements of a list in a JSON file, read one at a time: a published file may be far larger than memory.

_CHUNK = 1 << 20
_LARGEST = 64 * _CHUNK
"""Maximum length of a list element in characters; a longer one is refused."""
_BETWEEN = re.compile(r"[\s]*")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_HEAD = re.compile(
    r"\s*\{\s*"
    r'(?:"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)\s*,\s*)*'  # members that are neither list nor object
    r'"([Dd]ata)"\s*:\s*(?=\[)'
)


def list_of(path: Path) -> tuple[str, int] | None:
    """Return (key, character offset) of the list of records in a JSON file. The key is "" if the file is a list, and
    "data" or "Data" if the file is an object whose first list has this key. Returns None for other files, such as JSON
    lines."""
    with open_text(path, "replace") as file:
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
    """Whether the first line is complete JSON and another line follows."""
    with open_text(path, "replace") as file:
        line = file.readline(_CHUNK)
        while line.isspace():
            line = file.readline(_CHUNK)
        try:
            json.loads(line)
        except (ValueError, RecursionError):  # also for a line longer than _CHUNK
            return False
        return any(not more.isspace() for more in iter(lambda: file.readline(_CHUNK), ""))


class _Reader:
    """The text of a file from `start` on, read in chunks."""

    def __init__(self, path: Path, file: TextIO, start: int) -> None:
        self._path, self._file = path, file
        self._line, self._column = 1, 1
        """Position of the first character of `text`."""
        self.text, self.at = "", 0
        self.more(start + 1)
        self.at = start

    def more(self, count: int = _CHUNK) -> bool:
        """Read at least `count` further characters; False at the end of the file."""
        self._line, self._column = self._place(self.at)
        try:
            added = self._file.read(max(count, len(self.text) - self.at))
        except UnicodeError as e:
            raise DataError(f"{self._path}: not valid UTF-8 text ({e}); save the file as UTF-8") from None
        self.text, self.at = self.text[self.at :] + added, 0
        return bool(added)

    def skip(self) -> str:
        """Skip white space and return the next character; "" at the end."""
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
    """Yield the elements of the list that begins at character `start`; text after the list is not read. Raises
    DataError for invalid JSON."""
    with open_text(path) as file:
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
        if not reader.more():  # at the end of the text a number may continue
            end -= before
            break
    if has_half_pair(value, reader.text, reader.at, end):
        reader.refuse("half a surrogate pair, which is no text")
    reader.at = end
    return value


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a file."""

    path: Path
    at: str
    """The position, e.g. "line 3" or "data[0].paragraphs[2]"."""
    value: Any
    of_table: bool = False
    """The value is a row of a table: a cell may be empty, or hold a list as text."""

    def refuse(self, reason: str) -> NoReturn:
        raise DataError(f"{self.where}: {reason}")

    @property
    def where(self) -> str:
        return f"{self.path}, {self.at or 'top level'}"

    def has(self, key: str) -> bool:
        """Whether the key has a value; null counts as absent."""
        return self.object().get(key) is not None

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.refuse(f"{shown(self.value)} stands where an object is needed; compare it with the published format")
        return self.value

    def get(self, key: str) -> Node:
        """The member `key`; its value is None if the key is absent."""
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
        """The stripped text of a member. Raises DataError if it is empty or missing."""
        return self.get(key).string()

    def required(self, key: str, setting: str = "") -> str:
        """Like `text`, for a user's own file: the error for a missing key names `setting`, which can rename the key."""
        value = self.object().get(key)
        if value is None:
            called = f"; {setting}=NAME says what it is called" if setting else ""
            keys = ", ".join(map(str, self.object()))[:100] or "nothing"
            self.refuse(f"'{key}' is missing or empty; the row has {keys}{called}")
        if isinstance(value, Mapping):
            self.refuse(f"'{key}' is {shown(value)}; it must be a text: a key within an object cannot be named")
        if not isinstance(value, str) or not value.strip():
            self.refuse(f"'{key}' is {shown(value)}; it must be a non-empty string")
        return value.strip()

    def id(self, key: str = "id", setting: str = "") -> str:
        """The id as text; a whole number is accepted too. `required` handles every other value."""
        value = self._cell(key)
        if is_number(value) and value % 1 == 0:
            return written(value)
        return value.strip() if isinstance(value, str) and value.strip() else self.required(key, setting)

    def _cell(self, key: str) -> Any:
        """The value of a member. In a table "3.0" becomes "3": one empty cell turns a column of integers into
        floats."""
        value = self.object().get(key)
        return value[:-2] if self.of_table and isinstance(value, str) and _WHOLE.fullmatch(value) else value

    def filled(self) -> Node:
        """For a table row, drop empty cells and parse the lists written in cells (JSON or Python syntax)."""
        if not self.of_table:
            return self
        cells = {key: list_in(cell) for key, cell in self.object().items() if cell not in (None, "")}
        return Node(self.path, self.at, cells, of_table=True)

    def string(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            self.refuse(f"{shown(self.value)}; a text that is not empty is needed")
        return self.value.strip()

    def optional_text(self, key: str) -> str:
        """The stripped text of a member, "" if absent; a number is written out."""
        value = self._cell(key)
        if is_number(value):
            return written(value)
        if value is not None and not isinstance(value, str):
            self.get(key).refuse(f"{shown(value)}; a text is needed, or leave '{key}' out")
        return (value or "").strip()

    def answers(self, *keys: str) -> tuple[str, ...]:
        """The answers under the first of `keys` that is present: a text, a number, true or false, or a list of
        these."""
        key = next((key for key in keys if self.has(key)), keys[0])
        value = self._cell(key)
        texts = [_answer_of(given) for given in (value if isinstance(value, list) else [value])]
        if not texts or not all(texts):
            self.refuse(f"'{key}' is {shown(value)}; a text that is not empty is needed, or a list of such")
        return tuple(text for texts_of_one in texts for text in texts_of_one)

    def split(self, of_file: str | None) -> str | None:
        """The split that the row names, as train, dev or test; `of_file` if 'split' is absent or empty."""
        given = self.object().get("split")
        if given is None or given == "":
            return of_file
        known = SPLIT_NAMES.get(given.strip().lower()) if isinstance(given, str) else None
        if known is None:
            self.refuse(f"'split' is {shown(given)}; {', '.join(SPLITS)} are allowed, or leave it out")
        return known


def read_json(path: Path) -> Node:
    """Read a whole JSON file."""
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


def read_records(
    path: Path, without: Collection[str] = (), malformed: Malformed | None = None, what: str = "task.path"
) -> Iterator[Node]:
    """Yield the objects of a list in a .json file, the rows of a .parquet, .csv or .tsv file, or the objects of JSON
    lines in any other file. All but parquet may be compressed (.gz, .bz2, .xz). without: columns that are not read, as
    in tables.Table.rows. malformed: collects rows that cannot be read; without it they raise DataError. what: the
    file's name in errors."""
    if not path.is_file():
        raise DataError(f"{what}: '{path}' is not a file; give the path of one")
    if (kind := kind_of(path)) in _NO_TEXT:
        raise DataError(f"{what}: '{path}' is a {kind} file; save it as JSON lines, CSV or parquet")
    rows = _unpacked(path, _records(path, kind, without, malformed, what))
    yield from rows if malformed is None else malformed.to_the_end(rows)


def _records(path: Path, kind: str, without: Collection[str], malformed: Malformed | None, what: str) -> Iterator[Node]:
    if kind == ".parquet":
        yield from rows_of(path, ParquetTable(path), without)
    elif kind in (".csv", ".tsv"):
        yield from read_table(path, read_text(path), malformed)
    elif kind == ".json" and (found := list_of(path)) is not None:
        key, start = found
        yield from (Node(path, f"{key}[{i}]", value) for i, value in enumerate(elements(path, start)))
    else:  # also .json: data sets come as a list, as an object whose list is called data, or as JSON lines
        yield from read_rows(path, what, malformed)


def rows_of(path: Path, table: Table, without: Collection[str] = ()) -> Iterator[Node]:
    """Yield the rows of a table as objects; the first is row 1."""
    for number, row in enumerate(table.rows(without), start=1):
        yield Node(path, f"row {number}", row, of_table=True)


_SEPARATOR = re.compile(r'"?sep=(.)"?(?:\r\n?|\n)')
"""The separator line that Excel writes before the header."""


def read_table(path: Path, text: str, malformed: Malformed | None = None) -> Iterator[Node]:
    """Yield the rows of a CSV file with a header, as objects of texts. The separator is given by a first line "sep=X";
    without it, the header's most frequent one of comma, semicolon, tab and bar is used."""
    named = _SEPARATOR.match(text)
    body = text[named.end() :] if named else text
    header = re.split(r"[\r\n]", body.lstrip("\r\n"), maxsplit=1)[0]
    delimiter = named[1] if named else max(",;\t|", key=header.count)
    # the limit is process-wide: raise it to the length of the file, which no cell exceeds, and never lower it
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    cells = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)

    def line() -> str:
        return f"line {cells.line_num + bool(named)}"

    try:
        rows = (row for row in cells if row)
        columns = [name.strip() or f"column {i}" for i, name in enumerate(next(rows, []), start=1)]
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise DataError(f"{path}, {line()}: the header has '{twice[0]}' twice; rename one")

        def whole(row: list[str]) -> Node:
            node = Node(path, line(), None)
            if len(row) != len(columns):
                node.refuse(
                    f"not {len(columns)} columns as the header has; check the quotes of this and the lines before"
                )
            return Node(path, node.at, dict(zip(columns, row, strict=True)), of_table=True)

        yield from map(whole, rows) if malformed is None else malformed.spare(whole, rows)
    except csv.Error as e:
        raise DataError(f"{path}, {line()}: not readable as CSV ({e}); check the quotes") from None


def list_in(cell: Any) -> Any:
    """Parse a list written in a cell, such as '["a", "b"]'; another cell is returned unchanged."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    with suppress(ValueError, RecursionError):
        return found if isinstance(found := json.loads(cell), list) else cell
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        found = ast.literal_eval(cell)
        return found if repr(found) == cell.strip() else cell  # numpy omits the commas, which would join the texts
    return cell


def read_text(path: Path, fallback: str | None = None) -> str:
    """Read a file as UTF-8, or else in the encoding `fallback`, which must accept every byte."""
    if not path.is_file():
        raise DataError(f"'{path}' is not a file; give the path of one")
    with open_bytes(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeError as e:
        if fallback is None:
            raise DataError(f"{path}: not valid UTF-8 text ({e}); save the file as UTF-8") from None
        return raw.decode(fallback)


_WHOLE = re.compile(r"\s*[-+]?\d+\.0\s*")
_EXACT = 1e22
"""From here on an integer may have no exact float."""


def is_number(value: object) -> bool:
    """Whether `value` is a finite number; tables write NaN for a missing one."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value)


def written(number: Any) -> str:
    """Write a number as text: 72.0 as "72"."""
    is_whole = not isinstance(number, int) and number % 1 == 0 and abs(number) < _EXACT
    return str(int(number) if is_whole else number)


def _answer_of(value: object) -> tuple[str, ...]:
    """The accepted texts of an answer; () if `value` is not an answer."""
    if isinstance(value, bool):
        return ("yes", "true") if value else ("no", "false")
    if is_number(value):
        return (written(value),)
    return (value.strip(),) if isinstance(value, str) and value.strip() else ()


def shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
