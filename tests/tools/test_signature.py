"""Schemas from signatures and docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.functions import spec_of
from agentgrpo.tools.schema import ArgumentSchema
from tests.tools import samples


def test_a_whole_function() -> None:
    assert spec_of(samples.weather) == ToolSpec(
        name="weather",
        description="Forecasts the weather of a city. Said in the morning.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where, as people call it: its name."},
                "days": {"type": "integer", "description": "How many days ahead.", "default": 1},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                "shares": {
                    "anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}],
                    "description": "Of sun.",
                    "default": None,
                },
                "notes": {
                    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                    "default": None,
                },
                "exact": {"type": "boolean", "default": False},
                "anything": {},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    )


def test_a_workspace_is_no_argument() -> None:
    assert spec_of(samples.count).parameters == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }


def test_arguments_that_fit() -> None:
    schema = ArgumentSchema("weather", spec_of(samples.weather).parameters)
    problems = {
        "ok": schema.problem({"city": "Bern", "days": 2, "shares": {"a": 1}, "notes": None, "exact": True}),
        "unit": schema.problem({"city": "Bern", "unit": "k"}),
        "days": schema.problem({"city": "Bern", "days": "2"}),
        "shares": schema.problem({"city": "Bern", "shares": {"a": "b"}}),
        "more": schema.problem({"city": "Bern", "self": 1}),
    }
    assert problems == {
        "ok": None,
        "unit": "unit must be one of c, f",
        "days": "days must be a whole number",
        "shares": "shares is not allowed: {'a': 'b'} is not valid under any of the given schemas",
        "more": "unknown argument self; allowed: city, days, unit, shares, notes, exact, anything",
    }


def mixed(a: Literal[1, "b", None], b: int | str, c: list, d: dict[str, list[int]], e: None = None) -> None:  # type: ignore[type-arg]
    """Mixes.

    Args:
        a: A.
    Note:
        c: this is no argument.
    """


def test_other_annotations() -> None:
    assert spec_of(mixed).parameters["properties"] == {
        "a": {"enum": [1, "b", None], "description": "A."},
        "b": {"type": ["integer", "string"]},
        "c": {"type": "array"},
        "d": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        "e": {"type": "null", "default": None},
    }


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (samples.unannotated, "parameter a has no annotation; annotate it: a: str"),
        (samples.starred, "*a: 'int' cannot be passed by name"),
        (samples.double_starred, "**a: 'int' cannot be passed by name"),
        (samples.positional, "a: 'int' cannot be passed by name"),
        (samples.of_bytes, "parameter a is annotated bytes; str, int, float, bool, None"),
        (samples.by_number, "parameter a is annotated dict[int, str]"),
        (samples.of_path, "parameter a is annotated pathlib.Path"),
        (samples.undocumented, "has no docstring; write one that tells the policy what the tool does"),
        (samples.only_arguments, "has no docstring"),
        (samples.of_another, "its docstring describes b, which is not a parameter"),
        (samples.unreadable, "its annotations cannot be read: name 'Nowhere' is not defined"),
        (samples.yielding, "is a generator; a tool must return its result"),
        (samples.yielding_later, "is a generator; a tool must return its result"),
    ],
)
def test_what_cannot_be_described(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        spec_of(function)
    assert str(error.value).startswith(f"tests.tools.samples:{function.__name__}")
    assert why in str(error.value)


def plain(a: str, b: int = 3, c: list[float] | None = None) -> str:
    """Is described in the way that transformers asks for.

    Args:
        a: The first.
        b: The second.
        c: The third.

    Returns:
        Nothing much.
    """
    return a


def test_a_function_for_transformers_says_the_same_here() -> None:
    from transformers.utils import get_json_schema

    theirs = get_json_schema(plain)["function"]
    ours = spec_of(plain)
    assert (ours.name, ours.description, ours.parameters["required"]) == (
        theirs["name"],
        theirs["description"],
        theirs["parameters"]["required"],
    )
    assert {k: v["description"] for k, v in ours.parameters["properties"].items()} == {
        k: v["description"] for k, v in theirs["parameters"]["properties"].items()
    }
    assert {k: ours.parameters["properties"][k]["type"] for k in "ab"} == {"a": "string", "b": "integer"}
