"""JSON text of a trajectory's parts: ASCII, compact, with null for a number that is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agentgrpo.errors import DataError

_MAX_DEPTH = 64
_DEEPEST_HOME = 4
"""Levels of the line above a tool call's arguments."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_FLOAT = {float}
_AS_IT_IS = {str, int, bool, type(None)}


def line(row: Mapping[str, Any]) -> str:
    """`row` as an object."""
    try:
        return _ENCODER.encode(row)
    except ValueError:  # a number that is not finite: rare, and dear to look for
        return _ENCODER.encode(_plain(row))


def string(value: str) -> str:
    return _ENCODER.encode(value)


def members(row: Mapping[str, Any]) -> str:
    """`row` as an object without its braces, to be joined with others by commas."""
    return line(row)[1:-1]


def numbers(values: Mapping[str, float]) -> str:
    """`line` of names and numbers, by name: in a third of the time, because the names are encoded only once."""
    ordered, template = _template(tuple(values))
    found = [values[name] for name in ordered]
    if set(map(type, found)) == _FLOAT and math.isfinite(sum(found)):
        return template % tuple(found)
    return line(dict(zip(ordered, found, strict=True)))


@lru_cache(maxsize=256)
def _template(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The names in order, and the text of their object with a place for each float."""
    ordered = tuple(sorted(names))
    return ordered, "{" + ",".join(_ENCODER.encode(name).replace("%", "%%") + ":%r" for name in ordered) + "}"


def foreign(value: Any) -> Any:
    """What this package did not shape itself, with its keys sorted: the bytes of a file depend on the values alone.
    Raises DataError for what is no JSON."""
    return _plain(value, depth=_DEEPEST_HOME)


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON that any reader takes: arguments come from a policy, metadata from a user."""
    if depth > _MAX_DEPTH:
        return f"[more than {_MAX_DEPTH} levels deep]"
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        plain = {str(k): v if type(v) in _AS_IT_IS else _plain(v, depth + 1) for k, v in value.items()}
        return {k: plain[k] for k in sorted(plain)} if depth else plain
    if isinstance(value, (list, tuple)):
        return [_plain(v, depth + 1) for v in value]
    raise DataError(f"a trajectory cannot hold a {type(value).__name__}; metadata and arguments must be plain JSON")
