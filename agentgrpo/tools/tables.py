"""Tables in the files of a workspace: a value by its key.

prices.txt     verdren 44            the rest of the line is the value; a tab may stand for the blank
               lomel see imports     an error entry: the value is in another table
prices.csv     first row = names of the columns, first column = key
prices.json    {"verdren": 44, ...}
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from agentgrpo.tools.beneath import FileProblem, PathRefused, list_beneath, read_beneath, shown

SUFFIXES = (".txt", ".csv", ".json")
_SEE = re.compile(r"see (\S+)")


def look_up(workspace: Path, table: str, key: str, *, max_bytes: int, max_entries: int) -> str:
    """The value; white space around table and key does not count. Raises FileProblem for an unknown table or key, and
    for a value that is in another table; PathRefused for a table whose name is a path."""
    table, key = table.strip(), key.strip()
    if "/" in table or "\0" in table:
        raise PathRefused(f"{shown(table)} is no name of a table")
    names = [e.name for e in list_beneath(workspace, ".", max_entries=max_entries) if e.num_bytes is not None]
    tables = {n.removesuffix(s): n for s in reversed(SUFFIXES) for n in names if n.endswith(s) and n != s}
    if table not in tables:
        raise FileProblem(f"no table {shown(table)}; there are {', '.join(shown(t) for t in sorted(tables)) or 'none'}")
    content, more = read_beneath(workspace, tables[table], max_bytes=max_bytes)
    if more:
        raise FileProblem(f"table {table} is too large: more than {max_bytes} bytes")
    value = _READERS[Path(tables[table]).suffix](table, content.decode("utf-8", "replace")).get(key)
    if value is None:
        raise FileProblem(f"unknown key {shown(key)}")
    if elsewhere := _SEE.fullmatch(value):
        raise FileProblem(f"{shown(key)} is in {elsewhere[1]}")
    return value.encode("utf-8", "replace").decode("utf-8")


def _from_lines(table: str, text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("\t" if "\t" in line else " ")
        if key:
            rows.setdefault(key.strip(), value.strip())
    return rows


def _from_csv(table: str, text: str) -> dict[str, str]:
    try:
        header, *lines = list(csv.reader(text.splitlines())) or [[]]
    except csv.Error as e:
        raise FileProblem(f"table {table} cannot be read: {e}") from e
    rows: dict[str, str] = {}
    for line in lines:
        cells = [cell.strip() for cell in line]
        named = [f"{n.strip()}={c}" for n, c in zip(header[1:], cells[1:], strict=False)]
        if cells:
            rows.setdefault(cells[0], cells[1] if len(cells) == 2 else ", ".join(named))
    return rows


def _from_json(table: str, text: str) -> dict[str, str]:
    try:
        rows: Any = json.loads(text)
        if isinstance(rows, dict):
            return {k.strip(): v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in rows.items()}
    except (ValueError, RecursionError) as e:
        raise FileProblem(f"table {table} cannot be read: {type(e).__name__}") from e
    raise FileProblem(f"table {table} cannot be read: it is no mapping of keys to values")


_READERS = {".txt": _from_lines, ".csv": _from_csv, ".json": _from_json}
