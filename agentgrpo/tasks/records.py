"""JSON, JSON lines, parquet and CSV files whose every value knows where it stands. Whatever is wrong is a DataError
that names file, position, reason and what to do."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agentgrpo.errors import DataError
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.json_list import elements, has_half_pair, list_of
from agentgrpo.tasks.reading import read_rows
from agentgrpo.tasks.tables import ParquetTable, Table


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
