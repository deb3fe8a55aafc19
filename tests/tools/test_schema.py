"""What is wrong with arguments, in one line."""

from __future__ import annotations

import math
import time
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.tools.schema import MAX_LENGTH, ArgumentSchema
from tests.thorough import examples

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1},
        "share": {"type": "number"},
        "unit": {"enum": ["c", "f"]},
        "more": {"type": ["array", "null"], "items": {"type": "object", "required": ["id"]}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FITTING = {"city": "Bern", "days": 2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (FITTING, None),
        (MappingProxyType({**FITTING, "more": (MappingProxyType({"id": 1}),)}), None),
        ({**FITTING, "share": 1, "unit": "c", "more": None}, None),
        ({}, "the argument city is missing; needed: city, days"),
        ({"city": "Bern"}, "the argument days is missing; needed: city, days"),
        ({**FITTING, "town": 1}, "unknown argument town; allowed: city, days, share, unit, more"),
        ({"town": "Bern", "days": "x"}, "unknown argument town; allowed: city, days, share, unit, more"),
        ({**FITTING, "city": 3}, "city must be a string"),
        ({**FITTING, "city": None}, "city must be a string"),
        ({**FITTING, "days": 2.0}, "days must be a whole number"),
        ({**FITTING, "days": True}, "days must be a whole number"),
        ({**FITTING, "days": 0}, "days is not allowed: 0 is less than the minimum of 1"),
        ({**FITTING, "city": "Geneva"}, "city is not allowed: 'Geneva' is too long"),
        ({**FITTING, "share": math.nan}, "share must be a number"),
        ({**FITTING, "share": math.inf}, "share must be a number"),
        ({**FITTING, "share": False}, "share must be a number"),
        ({**FITTING, "unit": "k"}, "unit must be one of c, f"),
        ({**FITTING, "more": "x"}, "more must be a list or null"),
        ({**FITTING, "more": [{}]}, "the argument id is missing in more[0]; needed: id"),
        ({**FITTING, "city": "a\ud800"}, "a text is not valid Unicode: it has half a surrogate pair"),
        ({**FITTING, "\ud800": 1}, "a text is not valid Unicode: it has half a surrogate pair"),
        ({**FITTING, "more": [{"id": ["\udfff"]}]}, "a text is not valid Unicode: it has half a surrogate pair"),
        ({**FITTING, "city": "\U0001f600"}, None),
        ([], "the arguments must be an object"),
        ("text", "the arguments must be an object"),
        (None, "the arguments must be an object"),
    ],
)
def test_problems(arguments: Any, problem: str | None) -> None:
    assert ArgumentSchema("weather", SCHEMA).problem(arguments) == problem


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "x", "\n"]), json_values))
def test_what_passes_is_of_the_types_that_were_promised(arguments: dict[str, Any]) -> None:
    problem = ArgumentSchema("weather", SCHEMA).problem(arguments)
    fits = (
        arguments.keys() <= SCHEMA["properties"].keys()
        and type(arguments.get("city")) is str
        and len(arguments["city"]) <= 5
        and type(arguments.get("days")) is int
        and arguments["days"] >= 1
        and type(arguments.get("share", 0)) in (int, float)
        and math.isfinite(arguments.get("share", 0))
        and arguments.get("unit", "c") in ("c", "f")
        and (
            arguments.get("more") is None
            or (type(arguments["more"]) is list and all(type(m) is not dict or "id" in m for m in arguments["more"]))
        )
        and all(type(m) is dict for m in arguments.get("more") or ())
    )
    assert (problem is None) == fits
    assert problem is None or (len(problem) <= MAX_LENGTH and "\n" not in problem.replace("argument \n", ""))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "array"}, "they must be an object"),
        ({"type": "nonsense"}, "are not a JSON schema"),
        ({"title": "\ud800"}, "nested too deep, or no valid Unicode"),
        ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, "refers to https://example.org/a.json"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "refers to file:///etc/passwd"),
    ],
)
def test_schemas_that_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ArgumentSchema("t", parameters)
    assert message in str(error.value)


def test_references_lead_into_the_schema() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/no"}}, "$defs": {"n": {"type": "null"}}}
    assert ArgumentSchema("t", schema).problem({"a": 1}) == "a must be null"
    with pytest.raises(ToolError, match="its schema cannot be followed"):
        ArgumentSchema("t", schema).problem({"b": 1})
    with pytest.raises(ToolError, match="RecursionError"):
        ArgumentSchema("t", {"$ref": "#"}).problem({})


@pytest.mark.parametrize("keys", [{}, {"unevaluatedItems": False}, {"unevaluatedProperties": False}])
@pytest.mark.parametrize("draft", ["2020-12/schema", "2019-09/schema"])
def test_references_that_double_at_every_step_are_given_up(draft: str, keys: dict[str, Any]) -> None:
    steps = {f"s{i}": {"allOf": [{"$ref": f"#/$defs/s{i + 1}"}] * 2} for i in range(30)}
    schema = {"$schema": f"https://json-schema.org/draft/{draft}", "properties": {"a": {**keys, "$ref": "#/$defs/s0"}}}
    doubling = ArgumentSchema("t", {**schema, "$defs": {**steps, "s30": {"type": "array"}}})
    began = time.process_time()
    with pytest.raises(ToolError, match="more than 20000 references"):
        doubling.problem({"a": [1]})
    assert time.process_time() - began < 5.0
    assert doubling.problem({}) is None


@pytest.mark.parametrize("keys", [{}, {"additionalProperties": False}, {"unevaluatedProperties": False}])
def test_no_pattern_is_ever_run(keys: dict[str, Any]) -> None:
    schema = {"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {"type": "string"}}}
    began = time.process_time()
    assert ArgumentSchema("t", {**schema, **keys}).problem({"a": "a" * 40 + "!", "b" * 40 + "!": 1}) is None
    assert time.process_time() - began < 1.0


def test_properties_may_be_called_like_keywords() -> None:
    schema = {"properties": {"pattern": {"type": "string"}}, "additionalProperties": False, "required": ["pattern"]}
    assert [ArgumentSchema("t", schema).problem(a) for a in ({"pattern": "("}, {"pattern": 1}, {})] == [
        None,
        "pattern must be a string",
        "the argument pattern is missing; needed: pattern",
    ]


@pytest.mark.parametrize("schema", [{}, {"properties": {"a": {"$ref": "#"}}}])
def test_deep_arguments_are_the_policys_fault(schema: dict[str, Any]) -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"a": nested(depth - 1)} if depth > 1 else {}

    assert ArgumentSchema("t", schema).problem(nested(32)) is None
    for depth in (33, 900):
        problem = ArgumentSchema("t", schema).problem(nested(depth))
        assert problem == "the arguments are nested more than 32 levels deep"


def test_a_schema_may_be_twice_as_deep_as_its_arguments() -> None:
    def of(depth: int) -> dict[str, Any]:
        return {"type": "object", **({"properties": {"a": of(depth - 1)}} if depth > 1 else {})}

    arguments: dict[str, Any] = {"a": 1}
    for _ in range(30):
        arguments = {"a": arguments}
    assert ArgumentSchema("t", of(32)).problem(arguments) == ".".join("a" * 31) + " must be an object"
