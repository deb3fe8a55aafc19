"""Check the values of a configuration against the annotations of their receivers: types, bounds, argument names.

An annotation gives the allowed values: `Literal["a", "b"]`, `int | None`, `Annotated[float, Gt(0), Le(1)]`. Pydantic
checks them strictly: "1" is no number, 1.5 is no whole number, true is neither, and null needs `None`. A refusal is one
line with the given and the allowed value. Pydantic is imported with the first value, so `agentgrpo --help` stays fast.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Predicate

from agentgrpo.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Finite = Predicate(math.isfinite)
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Finite]
PositiveOrZero = Annotated[float, Ge(0), Finite]
Share = Annotated[float, Ge(0), Le(1)]

_UNIONS = (typing.Union, types.UnionType)
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
    type(None): "null",
    Any: "anything",
}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_plain(hint: Any) -> bool:
    """Whether YAML can express a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return is_plain(arguments[0])
    if origin in (*_UNIONS, tuple, list, dict, Sequence, Mapping):
        return all(is_plain(a) for a in arguments if a is not Ellipsis)
    return origin is Literal or hint in (str, int, float, bool, Path, type(None), Any, tuple, list, dict)


def fit(path: str, value: Any, hint: Any) -> Any:
    """Convert the value of the key `path` to the type `hint`: whole numbers to floats, lists to tuples, texts to paths.
    Raises ConfigError if that is impossible."""
    from pydantic import ValidationError

    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)  # JSON can express every value of YAML
    except (ValidationError, TypeError) as e:
        raise ConfigError(f"{path}={_shown(value)}; {describe(hint)} is allowed{_meant(value, hint)}") from e


def check(group: str, settings: Any) -> None:
    """Check the fields of a dataclass against their annotations. Raises ConfigError for the first that does not fit."""
    for name, hint in _hints(settings.__class__).items():
        if is_plain(hint):
            fit(f"{group}.{name}", getattr(settings, name), hint)


def check_arguments(group: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Like `check`, for the arguments of a call by name."""
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name in given and is_plain(hint):
            fit(f"{group}.{name}", given[name], hint)


def fit_arguments(
    path: str, given: Mapping[str, Any], function: Callable[..., Any], *, called: str, provided: Iterable[str] = ()
) -> dict[str, Any]:
    """Convert `given` to keyword arguments of `function`, whose first argument and those in `provided` are not the
    user's. called: its name in messages. Raises ConfigError for an unknown, missing or invalid argument."""
    _, *others = parameters_of(function, path).items()
    keys = {k: p for k, p in others if p.kind in _NAMED and k not in provided and is_plain(p.annotation)}
    is_open = any(p.kind is inspect.Parameter.VAR_KEYWORD for _, p in others)
    for key in given:
        if key not in keys and not is_open:
            raise ConfigError(
                f"unknown key {path}.{key}; {called} takes {', '.join(keys) or 'none'}.{did_you_mean(str(key), keys)} "
                f"To drop a preset's key, write ~{path}.{key}"
            )
    for key, parameter in keys.items():
        if key not in given and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{path}.{key} has no value, which {called} needs; give it one: {path}.{key}=...")
    return {k: fit(f"{path}.{k}", v, keys[k].annotation) if k in keys else v for k, v in given.items()}


def parameters_of(target: Any, path: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor or of a function, with evaluated annotations. Raises ConfigError
    if an annotation cannot be evaluated."""
    maker = target.func if isinstance(target, partial) else target
    if not inspect.isclass(maker) and not inspect.isroutine(maker):
        maker = type(maker).__call__
    is_own = inspect.isclass(maker) and not dataclasses.is_dataclass(maker)  # its fields may come from other modules
    try:
        source = maker.__init__ if is_own else maker
        hints = typing.get_type_hints(source, include_extras=True)
    except NameError as e:
        raise ConfigError(f"{path}: the annotations of {maker.__qualname__} cannot be read: {e}") from e
    found = inspect.signature(target).parameters
    return {name: p.replace(annotation=hints.get(name, Any)) for name, p in found.items()}


def describe(hint: Any) -> str:
    """Describe the allowed values in words: a whole number >= 1, or null."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        words, limits = describe(arguments[0]), _limits(arguments[1:])
        if Finite in arguments[1:]:
            words = words.replace("a number", "a finite number")
        return f"{words} {limits}".rstrip()
    if origin in _UNIONS:
        return ", or ".join(describe(a) for a in arguments)
    if origin is Literal:
        *first, last = map(str, arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return f"a list of {len(arguments)}: {', '.join(map(describe, arguments))}"
    if (origin or hint) in (tuple, list, Sequence):
        return f"a list of {_many(arguments[0])}" if arguments else "a list"
    if (origin or hint) in (dict, Mapping):
        return f"a mapping of names to {_many(arguments[1])}" if arguments else "a mapping"
    return _WORDS.get(hint, inspect.formatannotation(hint))


def _many(hint: Any) -> str:
    words = describe(hint)
    return words.removeprefix("a ").replace("number", "numbers").replace("text", "texts").replace("path", "paths")


def _limits(metadata: Iterable[Any]) -> str:
    """Return the bounds in words: > 0 and <= 1. Bounds inside pydantic's Field count too."""
    entries = [part for entry in metadata for part in getattr(entry, "metadata", [entry])]
    found = [(sign, getattr(entry, key, None)) for key, sign in _BOUNDS.items() for entry in entries]
    return " and ".join(f"{sign} {bound:g}" for sign, bound in found if bound is not None)


def _meant(value: Any, hint: Any) -> str:
    """Return a hint: the allowed name that was probably meant, or the way to write a text."""
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else [hint]
    names = [str(name) for o in options if typing.get_origin(o) is Literal for name in typing.get_args(o)]
    near = did_you_mean(value, names) if isinstance(value, str) else ""
    if str in options and isinstance(value, bool | int | float):
        return "; quotes make a text of it: KEY='\"VALUE\"'"
    return near and f".{near}"


def _shown(value: Any) -> str:
    """Return a value in YAML's spelling if that is shorter than Python's."""
    if value is None or isinstance(value, bool):
        return json.dumps(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)


@cache
def _hints(settings: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(settings, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(settings)}  # type: ignore[arg-type]


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    try:
        return TypeAdapter(hint)
    except PydanticSchemaGenerationError as e:
        raise ConfigError(f"{inspect.formatannotation(hint)} is a type that YAML cannot express") from e
