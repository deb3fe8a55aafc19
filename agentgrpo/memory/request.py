"""A sampled call as what it asks of a memory, or as what is wrong with it.

Forgiven is what models commonly write and what can mean one thing only: numbers for texts, "3", 3, "S3" or "[s3]" for
the id s3, a type in capitals, null for an argument left out, any white space. Not forgiven are arguments that are a
text with JSON in it: reading JSON is the renderers', who are strict about it (no key twice, no NaN), and the same call
must not have two forms of which one is trained on by accident.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgrpo.errors import did_you_mean
from agentgrpo.memory.schema import CORE, DELETE, FACT, SKIP, UPDATE, Schema, key_of, prefix_of
from agentgrpo.protocol import AnyCall, MalformedCall
from agentgrpo.types import Outcome

MAX_CHARS = 20_000
"""Of a text that is looked at at all: whatever is longer is no note, and to count its tokens takes long."""
MAX_DETAIL = 300
"""Characters of a detail."""
_ID = re.compile(r"""[\s\[(<#"']*(?:([A-Za-z]+)[ _-]?)?([0-9]{1,9})[\s\])>"'.:,]*""")
_CONTROL = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_UNSEEN = dict.fromkeys((0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF))
"""Marks of direction and of no width: two texts that differ in them alone look the same."""
_INVISIBLE = ("Cc", "Cf", "Zs")
"""Categories of what is left that nobody sees where it stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    op: str
    """INSERT, UPDATE, DELETE, CORE or SKIP."""
    kind: str = ""
    id: str = ""
    """Of the entry to change; "" for INSERT, CORE and SKIP."""
    text: str = ""
    """To be written, normalised and never empty; "" for DELETE and SKIP."""


class Refused(ValueError):
    """Its text is the detail of the Applied, for the policy: one line."""

    def __init__(self, detail: str, outcome: Outcome = Outcome.INVALID_ARGS) -> None:
        valid = detail.encode("utf-8", "backslashreplace").decode()  # it is recorded: no half of a pair
        super().__init__(" ".join(valid.translate(_CONTROL).split())[:MAX_DETAIL] or "the call cannot be read")
        self.outcome = outcome


def request_of(schema: Schema, call: AnyCall) -> Request:
    """Raises Refused, whatever the call holds, and nothing else."""
    if isinstance(call, MalformedCall):
        raise Refused(call.problem)
    name: Any = call.name
    if not isinstance(name, str) or name not in schema.operations:
        near = did_you_mean(name[:100], schema.operations) if isinstance(name, str) else ""
        tools = ", ".join(schema.operations)
        raise Refused(f"there is no tool {shown(name)}; there are {tools}.{near}", Outcome.TOOL_NOT_FOUND)
    given = _arguments(schema, name, call.arguments)
    op = schema.operations[name]
    if op == SKIP:
        return Request(op=op)
    kind = FACT if schema.is_keyed else CORE if op == CORE else given["memory_type"]
    if kind == CORE:
        op = CORE
    text = "" if op == DELETE else _text(given, "new_content" if "new_content" in given else "content")
    return Request(op=op, kind=kind, id=_id(schema, op, kind, given, text), text=text)


def normalised(text: str) -> str:
    """One line: white space and control characters as single spaces, marks that nobody sees left out; "" where nothing
    is left that can be seen. Normalising it again changes nothing."""
    clean = " ".join(text.translate(_CONTROL | _UNSEEN).split())
    return clean if any(unicodedata.category(c) not in _INVISIBLE for c in clean) else ""


def is_unicode(text: str) -> bool:
    """Whether a file can hold it: no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """Something sampled, inside a detail: quoted, at most 40 characters of it."""
    if not isinstance(value, str):
        return _kind_of(value)
    return repr(value if len(value) <= 40 else value[:40] + "...")


def _text(given: Mapping[str, str], name: str) -> str:
    text = given[name]
    if len(text) > MAX_CHARS:
        raise Refused(f"{name} has {len(text)} characters; at most {MAX_CHARS} are read: write a short note")
    if not is_unicode(text):
        raise Refused(f"{name} is not valid Unicode: it has half a surrogate pair")
    clean = normalised(text)
    if not clean:
        raise Refused(f"{name} is empty; write at least one word, or skip")
    return clean


def _arguments(schema: Schema, tool: str, arguments: Any) -> dict[str, str]:
    if not isinstance(arguments, Mapping):
        raise Refused(f"the arguments must be a JSON object, not {_kind_of(arguments)}")
    parameters = schema.spec(tool).parameters
    properties, required = parameters["properties"], parameters["required"]
    for name in arguments:
        if not isinstance(name, str) or name not in properties:
            raise Refused(f"unknown argument {shown(name)}; allowed: {', '.join(properties) or 'none'}")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in required:
        if name not in given:
            raise Refused(f"the argument {name} is missing; needed: {', '.join(required)}")
    texts = {name: _argument(name, value) for name, value in given.items()}
    return {
        name: _chosen(schema, name, t, properties[name]) if "enum" in properties[name] else t
        for name, t in texts.items()
    }


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Refused(f"{name} must be a text, not {_kind_of(value)}")
    if value.bit_length() > 64 if isinstance(value, int) else isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{name} must be a text, not a number out of range")
    return str(value)


def _chosen(schema: Schema, name: str, text: str, described: Mapping[str, Any]) -> str:
    allowed: list[str] = described["enum"]
    kind = text.strip().lower()
    if kind in allowed:
        return kind
    if kind == CORE and schema.core:
        raise Refused(f"{name}=core: the core paragraph can only be replaced, by {schema.core_call}")
    raise Refused(f"{name} must be one of {', '.join(allowed)}, not {shown(text)}.{did_you_mean(kind[:100], allowed)}")


def _id(schema: Schema, op: str, kind: str, given: Mapping[str, str], text: str) -> str:
    if op not in (UPDATE, DELETE):
        return ""
    if schema.is_keyed:
        return key_of(text if op == UPDATE else _text(given, "key"))
    if "memory_id" not in given:
        raise Refused(
            f"the argument memory_id is missing; name the entry of {kind} to change, such as {prefix_of(kind)}1"
        )
    id = given["memory_id"]
    found = _ID.fullmatch(id) if len(id) <= 40 else None
    return f"{(found[1] or prefix_of(kind)).lower()}{int(found[2])}" if found else id


def _kind_of(value: Any) -> str:
    """What JSON calls it."""
    kinds = ((bool, "a truth value"), (str, "a text"), (Mapping, "an object"), (list | tuple, "a list"))
    return "null" if value is None else next((name for kind, name in kinds if isinstance(value, kind)), "a number")
