"""Values of a configuration, as a constructor's parameters want them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agentgrpo.errors import ConfigError


def is_plain(hint: Any) -> bool:
    """Whether YAML can say a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, tuple, list, dict, Sequence, Mapping):
        return all(is_plain(a) for a in arguments if a is not Ellipsis)
    return origin is Literal or hint in (str, int, float, bool, Path, type(None), Any, tuple, list, dict)


def fit(path: str, value: Any, hint: Any) -> Any:
    """`value` of the key `path` as a parameter of type `hint` wants it. Raises ConfigError where it cannot be."""
    try:
        return _fit(value, hint)
    except TypeError as e:
        raise ConfigError(f"{path}={value!r}; {inspect.formatannotation(hint)} is allowed") from e


def _fit(value: Any, hint: Any) -> Any:
    """`value` as its parameter wants it: whole numbers as floats, lists as tuples, texts as paths. Raises TypeError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            with suppress(TypeError):
                return _fit(value, option)
    elif hint is Any or (origin is Literal and value in arguments) or type(value) is hint:
        return value
    elif hint is float and type(value) is int:
        return float(value)
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif origin in (list, Sequence) and isinstance(value, list):
        return [_fit(v, arguments[0]) for v in value]
    elif (origin or hint) is tuple and isinstance(value, list):
        wanted = [arguments[0]] * len(value) if arguments[1:] == (Ellipsis,) else arguments or [Any] * len(value)
        if len(wanted) == len(value):
            return tuple(_fit(v, h) for v, h in zip(value, wanted, strict=True))
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {_fit(k, arguments[0]): _fit(v, arguments[1]) for k, v in value.items()}
    raise TypeError
