"""Memories as JSON: what a file of one must hold before it is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgrpo.errors import DataError
from agentgrpo.memory.base import Change, Entry
from agentgrpo.memory.request import Request, is_unicode, normalised, shown
from agentgrpo.memory.schema import CORE, DELETE, INSERT, SCHEMAS, UPDATE, Schema

VERSION = 1
_KEYS = {"version", "schema", "core", "entries", "history"}
_OPS = {INSERT: (False, True), UPDATE: (True, True), DELETE: (True, False), CORE: (None, True)}
"""Whether a change has `before` and `after`; None = both ways."""


class Unusable(ValueError):
    """Its text: what is wrong with the JSON of a memory."""


def written(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def read(path: Path) -> Any:
    """The JSON value of a file. Raises DataError."""
    try:
        return json.loads(path.read_bytes())
    except OSError as e:
        raise DataError(f"memory '{path}': {e.strerror}; give the path of a file that Memory.save wrote") from e
    except (ValueError, RecursionError) as e:
        raise DataError(f"memory '{path}' is no JSON: {e}; give the path of a file that Memory.save wrote") from e


def schema_of(value: Any) -> Schema:
    """Raises Unusable where the value as a whole is no memory."""
    if not isinstance(value, Mapping) or set(value) != _KEYS:
        raise Unusable(f"it is no memory; a JSON object with {', '.join(sorted(_KEYS))} is needed")
    if type(value["version"]) is not int or value["version"] != VERSION:
        raise Unusable(f"its version is not {VERSION}, which is what this program reads and writes")
    name = value["schema"]
    if not isinstance(name, str) or name not in SCHEMAS:
        raise Unusable(f"it has the schema {shown(name)}; allowed are {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def changes_of(value: Mapping[str, Any]) -> Iterator[Change]:
    """Of its history, each well-formed in itself. Raises Unusable."""
    rows = value["history"]
    if not isinstance(rows, list):
        raise Unusable("its history is not a list")
    for number, row in enumerate(rows, start=1):
        yield _change(f"change {number}", row)


def request_again(schema: Schema, change: Change) -> Request:
    """What was asked for when `change` was made. Raises Unusable where `schema` has no such kind."""
    entry = change.after or change.before
    kind = entry.kind if entry else ""
    if kind not in ({CORE} if change.op == CORE and schema.core else schema.kinds):
        raise Unusable(f"{change.op} of kind {shown(kind)}: schema {schema.name} has none")
    id = change.before.id if change.before and change.op != CORE else ""
    return Request(op=change.op, kind=kind, id=id, text=change.after.text if change.after else "")


def _change(where: str, row: Any) -> Change:
    if not isinstance(row, Mapping) or set(row) != {"op", "chunk", "before", "after"}:
        raise Unusable(f"{where} is no object with op, chunk, before, after")
    if not isinstance(row["op"], str) or row["op"] not in _OPS:
        raise Unusable(f"{where}: op {shown(row['op'])}; allowed are {', '.join(_OPS)}")
    before, after = (_entry(f"{where}, {side}", row[side]) for side in ("before", "after"))
    for side, entry, needed in zip(("before", "after"), (before, after), _OPS[row["op"]], strict=True):
        if needed is not None and needed != (entry is not None):
            raise Unusable(f"{where}: {row['op']} {'needs' if needed else 'has no'} {side}")
    return Change(op=row["op"], chunk=_chunk(where, row["chunk"]), before=before, after=after)


def _entry(where: str, row: Any) -> Entry | None:
    if row is None:
        return None
    if not isinstance(row, Mapping) or set(row) != {"id", "kind", "text", "chunk"}:
        raise Unusable(f"{where} is no object with id, kind, text, chunk")
    for name in ("id", "kind", "text"):
        if not isinstance(row[name], str) or not row[name] or not _is_normal(row[name]):
            raise Unusable(f"{where}: its {name} is no text of one line without needless white space")
    return Entry(id=row["id"], kind=row["kind"], text=row["text"], chunk=_chunk(where, row["chunk"]))


def _is_normal(text: str) -> bool:
    return is_unicode(text) and normalised(text) == text


def _chunk(where: str, chunk: Any) -> int:
    if type(chunk) is not int or chunk < 0:
        raise Unusable(f"{where}: its chunk is no whole number from 0")
    return chunk
