"""Check whether the arguments of a call fit a tool's JSON schema, and describe a mismatch in one line.

Schemas come from tools of any origin (MCP servers too), so all of JSON Schema is supported, with three differences that
keep a check short, local and strict. Regular expressions are not run, as they can take for ever (`pattern`,
`patternProperties`, and unevaluated items and properties beside these). References may point only into the schema
itself (nothing is fetched), and at most MAX_REFERENCES are followed. An integer must be an int (not 1.0 or true), and a
number must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import exceptions, validators
from jsonschema.validators import Draft202012Validator
from referencing import Registry

from agentgrpo.core.errors import ConfigError, ToolError, line_of

MAX_LENGTH = 300
"""Maximum characters of a problem's description."""
MAX_DEPTH = 32
"""Maximum nesting of lists and objects in arguments; no tool needs more, and code that walks them may recurse."""
_SCHEMA_DEPTH = 2 * MAX_DEPTH
"""Maximum nesting of a schema, which takes two levels to describe one."""
MAX_REFERENCES = 20_000
"""References followed while one call is checked; thirty definitions that each name the next one twice lead to a
thousand million.
"""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_TYPES = {"object": "an object", "array": "a list", "integer": "a whole number", "null": "null"}


class ArgumentSchema:
    """Raises ConfigError if `parameters` is not a JSON schema of an object."""

    def __init__(self, tool: str, parameters: Mapping[str, Any]) -> None:
        self._tool = tool
        try:
            schema = _plain(parameters, _SCHEMA_DEPTH)
        except (RecursionError, UnicodeEncodeError) as e:
            raise ConfigError(f"tool {tool}: its parameters are nested too deep, or no valid Unicode") from e
        if outside := next((r for r in _references(schema) if not r.startswith("#")), None):
            raise ConfigError(f"tool {tool}: its schema refers to {outside}; only references into itself (#...) work")
        kind = validators.validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except exceptions.SchemaError as e:
            raise ConfigError(f"tool {tool}: its parameters are not a JSON schema: {e.message}") from e
        if schema.get("type", "object") != "object":
            raise ConfigError(f"tool {tool}: its parameters are of type {schema['type']}; they must be an object")
        self._followed = 0
        self._validator = _strict(kind, self._follow)(schema, registry=Registry())

    def problem(self, arguments: Any) -> str | None:
        """Describe for the policy how `arguments` violate the schema; None if they fit. Equal arguments give equal
        descriptions. Raises ToolError if the schema itself cannot be followed."""
        if not isinstance(arguments, Mapping):
            return "the arguments must be an object"
        try:
            plain = _plain(arguments, MAX_DEPTH)
        except UnicodeEncodeError:
            return "a text is not valid Unicode: it has half a surrogate pair"
        except RecursionError:
            return f"the arguments are nested more than {MAX_DEPTH} levels deep"
        self._followed = 0
        try:
            found = min(self._validator.iter_errors(plain), key=_rank, default=None)
        except (exceptions._WrappedReferencingError, RecursionError) as e:
            raise ToolError(f"tool {self._tool}: its schema cannot be followed: {line_of(e)}") from e
        return None if found is None else _describe(found)[:MAX_LENGTH]

    def _follow(self) -> None:
        self._followed += 1
        if self._followed > MAX_REFERENCES:
            raise RecursionError(f"more than {MAX_REFERENCES} references to follow")


def _strict(kind: Any, follow: Callable[[], None]) -> Any:
    types = kind.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) is int or (type(value) is float and math.isfinite(value)),
        }
    )
    unread = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems")
    read: dict[str, Any] = dict.fromkeys(unread, _unread)
    read |= {name: _counted(kind.VALIDATORS[name], follow) for name in _REFERENCES if name in kind.VALIDATORS}
    usual = kind.VALIDATORS["additionalProperties"]
    read["additionalProperties"] = lambda v, value, instance, schema: (
        _unread() if "patternProperties" in schema else usual(v, value, instance, schema)
    )
    return validators.extend(kind, read, type_checker=types)


def _counted(usual: Any, follow: Callable[[], None]) -> Any:
    def followed(*given: Any) -> Any:
        follow()
        return usual(*given)

    return followed


def _unread(*_: Any) -> Iterator[exceptions.ValidationError]:
    yield from ()


def _plain(value: Any, depth: int) -> Any:
    """Convert mappings to dicts and sequences to lists, the types that a validator takes for objects and arrays. Raises
    RecursionError if the nesting exceeds `depth`, UnicodeEncodeError for a text that cannot be encoded as UTF-8."""
    if isinstance(value, str):
        value.encode("utf-8")
        return value
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        raise RecursionError
    if isinstance(value, Mapping):
        return {_plain(k, depth): _plain(v, depth - 1) for k, v in value.items()}
    return [_plain(v, depth - 1) for v in value]


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (v for k, v in schema.items() if k in _REFERENCES and isinstance(v, str))
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _references(inner)


_ORDER = ("additionalProperties", "required", "type", "enum")


def _rank(error: exceptions.ValidationError) -> tuple[int, int, str, str]:
    order = _ORDER.index(error.validator) if error.validator in _ORDER else len(_ORDER)
    return len(error.absolute_path), order, error.json_path, error.message


def _describe(error: exceptions.ValidationError) -> str:
    where = error.json_path.removeprefix("$").removeprefix(".")
    inside, of = f" in {where}" if where else "", f"{where} " if where else ""
    known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
    match error.validator:
        case "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            return f"the argument {missing} is missing{inside}; needed: {', '.join(error.validator_value)}"
        case "additionalProperties" if error.validator_value is False:
            unknown = sorted(str(name) for name in error.instance if name not in known)
            return f"unknown argument {unknown[0]}{inside}; allowed: {', '.join(known) or 'none'}"
        case "type":
            wanted = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            return f"{of}must be {' or '.join(_TYPES.get(t, f'a {t}') for t in wanted)}"
        case "enum":
            return f"{of}must be one of {', '.join(str(v) for v in error.validator_value)}"
    return " ".join(f"{of}{'is' if where else 'the arguments are'} not allowed: {error.message}".split())
