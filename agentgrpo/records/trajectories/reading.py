"""A trajectory file to typed records."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

from agentgrpo.errors import DataError
from agentgrpo.records.trajectories.packing import unpack
from agentgrpo.records.trajectories.record import SCHEMA_VERSION, TrajectoryRecord

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "float | None": (int, float, NoneType),
    "float | list[Any] | None": (int, float, list, NoneType),
    "list[Any]": (list,),
    "dict[str, Any]": (dict,),
    "dict[str, Any] | None": (dict, NoneType),
}


def read_trajectories(path: Path, *, first: int = 0) -> Iterator[TrajectoryRecord]:
    """The episodes of a file, in order, without those before `first`. Raises DataError with file, line and reason where
    a line is malformed, of another schema, or missing."""
    summary = read_summary(path)
    number = first + 1
    with path.open("rb") as f:
        for number, line in enumerate(itertools.islice(f, first + 1, None), start=first + 2):
            row = _parse(path, number, line)
            try:
                yield _record(row)
            except (ValueError, KeyError, TypeError, AttributeError, zlib.error, struct.error) as e:
                raise DataError(f"{path}:{number}: {type(e).__name__}: {e}") from e
    if number != summary["total"] + 1:
        raise DataError(f"{path}:1: the summary counts {summary['total']} episodes, but {number - 1} follow")


def read_summary(path: Path) -> dict[str, Any]:
    """The first line. Raises DataError where there is none or it is of another schema version."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; trajectories lie in the `trajectories` folder of a run")
    with path.open("rb") as f:
        summary = _parse(path, 1, f.readline())
    if summary.get("schema_version") != SCHEMA_VERSION or not isinstance(summary.get("total"), int):
        raise DataError(
            f"{path}:1: schema_version {summary.get('schema_version')}; this version reads {SCHEMA_VERSION}"
        )
    return summary


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}:{number}: {e}") from e
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: a {type(row).__name__} instead of an object")
    return row


def _record(row: dict[str, Any]) -> TrajectoryRecord:
    tokens = row.pop("tokens")
    for field in fields(TrajectoryRecord):
        if field.name != "branches" and not isinstance(row[field.name], _TYPES[str(field.type)]):
            raise ValueError(f"{field.name} is a {type(row[field.name]).__name__}, not {field.type}")
    return TrajectoryRecord(**row, branches=unpack(row["agent"]["messages"], tokens) if tokens else ())
