"""Calls in sampled text: JSON is read strictly, and every problem is described in one line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from agentgrpo.core.messages import AnyCall, MalformedCall
from agentgrpo.core.types import ToolCall

_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n;]*")
_KEYS = re.compile(r'"(?:name|parameters|arguments)"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\\n]{1,64})"')
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class UnreadableCall(ValueError):
    """The message tells the policy the problem in one line."""


def read_json(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins at `start` (after white space) and the index after it.

    Strict, since the values are recorded as JSON and handed to tools: no NaN or Infinity, no duplicate key, no number
    that is not finite, no unpaired surrogate. Raises UnreadableCall."""
    begin = _SPACE.match(text, start).end()  # type: ignore[union-attr]  # matches everywhere
    if begin == len(text):
        raise UnreadableCall("there is no JSON")
    try:
        value, end = _DECODER.raw_decode(text, begin)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as e:
        raise UnreadableCall(f"this is not JSON: {e.msg.removesuffix(' at')} at character {e.pos - begin + 1}") from e
    except UnicodeEncodeError as e:
        raise UnreadableCall("this is not JSON: half of a surrogate pair in a string") from e
    except RecursionError as e:
        raise UnreadableCall("this is not JSON: nested too deeply") from e
    except UnreadableCall:
        raise
    except ValueError as e:  # Python's own limit on the digits of an integer
        raise UnreadableCall("this is not JSON: a number with too many digits") from e
    return value, end


def read_object(text: str, start: int = 0) -> tuple[Mapping[str, Any], int]:
    """Like `read_json`, for objects only."""
    value, end = read_json(text, start)
    if not isinstance(value, dict):
        raise UnreadableCall(f"a JSON object is needed, not {kind_of(value)}")
    return value, end


def call_of(value: Any, *, argument_keys: Sequence[str], id: str = "") -> ToolCall:
    """Return the call {"name": ..., argument_keys[0]: {...}}. The call may use any of `argument_keys`; without one, it
    has no arguments. Raises UnreadableCall."""
    if not isinstance(value, dict):
        raise UnreadableCall(f"a call is a JSON object, not {kind_of(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableCall('the call has no "name"' if "name" not in value else f'"name" must be {_needed(name)}')
    given = [key for key in argument_keys if key in value]
    if len(given) > 1:
        raise UnreadableCall(f"arguments are given twice: {' and '.join(given)}")
    if unknown := sorted(set(value) - {"name", "id", "type", *argument_keys}):
        raise UnreadableCall(f'a call has "name" and "{argument_keys[0]}", not {shown(", ".join(unknown))}')
    arguments = value[given[0]] if given else {}
    if not isinstance(arguments, dict):
        raise UnreadableCall(f'"{given[0]}" must be a JSON object, not {kind_of(arguments)}')
    return ToolCall(name=name, arguments=arguments, id=id)


def one_call(text: str, *, argument_keys: Sequence[str], whole: str, id: str = "") -> AnyCall:
    """Return the call in `text`, with nothing after it. whole: the call as it was sampled, markup included."""
    try:
        value, end = read_json(text)
        if rest := text[end:].strip():
            raise UnreadableCall(f"text after the call: {shown(rest)}")
        return call_of(value, argument_keys=argument_keys, id=id)
    except UnreadableCall as e:
        return malformed(whole, str(e), id=id)


def calls_in_row(text: str, *, argument_keys: Sequence[str]) -> tuple[AnyCall, ...]:
    """Return JSON calls in a row, with white space or ";" between them; unreadable JSON ends the row."""
    calls: list[AnyCall] = []
    end = 0
    while (start := _BETWEEN.match(text, end).end()) < len(text):  # type: ignore[union-attr]  # matches everywhere
        try:
            value, end = read_json(text, start)
        except UnreadableCall as e:
            return (*calls, malformed(text[start:], str(e)))
        try:
            calls.append(call_of(value, argument_keys=argument_keys))
        except UnreadableCall as e:
            calls.append(malformed(text[start:end], str(e)))
    return tuple(calls)


def seems_call(text: str) -> bool:
    """Return whether text without a mark is meant as a call: an object with a name or with arguments."""
    return text.lstrip().startswith("{") and _KEYS.search(text) is not None


def malformed(text: str, problem: str, *, name: str = "", id: str = "") -> MalformedCall:
    """Return a MalformedCall. name: if empty, taken from a "name" in `text`."""
    found = _NAME.search(text)
    return MalformedCall(text=text, problem=problem, name=name or (found[1] if found else ""), id=id)


def written(call: ToolCall, argument_key: str) -> str:
    """Return the JSON of a call as chat templates write it."""
    return json.dumps({"name": call.name, argument_key: dict(call.arguments)}, ensure_ascii=False)


def shown(text: str) -> str:
    """Sampled text inside a problem: quoted, one line, at most 40 characters of it."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def kind_of(value: Any) -> str:
    """Return the JSON type of the value, in words."""
    return _KINDS.get(type(value), "a number")


def _needed(name: Any) -> str:
    return "a string, not " + kind_of(name) if not isinstance(name, str) else "the name of a tool, not empty"


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise UnreadableCall(f"this is not JSON: {shown(digits)} is too large for a number")
    return number


def _no_constant(word: str) -> NoReturn:
    raise UnreadableCall(f"this is not JSON: {word}")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise UnreadableCall("this is not JSON: a key is given twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_float=_finite, parse_constant=_no_constant)
