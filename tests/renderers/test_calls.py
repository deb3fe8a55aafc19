import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.core.messages import MalformedCall
from agentgrpo.core.types import ToolCall
from agentgrpo.renderers.calls import UnreadableCall, call_of, calls_in_row, one_call, read_json, read_object, written

KEYS = ("arguments", "parameters")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON, st.sampled_from(["", " ", "\n\t "]), st.text("abc}]", max_size=3))
def test_what_json_writes_is_read_to_its_end(value: object, before: str, after: str) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        after = f" {after}"
    text = before + json.dumps(value)
    assert read_json(text + after) == (value, len(text))


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "there is no JSON"),
        (" \n", "there is no JSON"),
        ('{"a": 1', "this is not JSON: Expecting ',' delimiter at character 8"),
        ('  {"a": 1', "this is not JSON: Expecting ',' delimiter at character 8"),
        ('{"a": "1}', "this is not JSON: Unterminated string starting at character 7"),
        ("{'a': 1}", "this is not JSON: Expecting property name enclosed in double quotes at character 2"),
        ('{"a": "\n"}', "this is not JSON: Invalid control character at character 8"),
        ('{"a": NaN}', "this is not JSON: NaN"),
        ('{"a": -Infinity}', "this is not JSON: -Infinity"),
        ('{"a": 1e999}', "this is not JSON: '1e999' is too large for a number"),
        ('{"a": 1, "a": 2}', "this is not JSON: a key is given twice"),
        ('{"a": "\\ud800"}', "this is not JSON: half of a surrogate pair in a string"),
        ('{"a": "\ud800"}', "this is not JSON: half of a surrogate pair in a string"),
        ("[" * 100_000, "this is not JSON: nested too deeply"),
        ('{"a":' * 100_000, "this is not JSON: nested too deeply"),
        ("9" * 5000, "this is not JSON: a number with too many digits"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(UnreadableCall) as caught:
        read_json(text)
    assert str(caught.value) == problem


def test_an_object_is_asked_for() -> None:
    for text, kind in (
        ("[]", "an array"),
        ('"a"', "a string"),
        ("true", "a boolean"),
        ("null", "null"),
        ("1", "a number"),
    ):
        with pytest.raises(UnreadableCall, match=f"^a JSON object is needed, not {kind}$"):
            read_object(text)
    assert read_object('x {"a": 1} y', 1) == ({"a": 1}, 10)


@pytest.mark.parametrize(
    "value, problem",
    [
        (["lookup"], "a call is a JSON object, not an array"),
        ({"arguments": {}}, 'the call has no "name"'),
        ({"name": 3, "arguments": {}}, '"name" must be a string, not a number'),
        ({"name": "", "arguments": {}}, '"name" must be the name of a tool, not empty'),
        ({"name": "a", "arguments": "{}"}, '"arguments" must be a JSON object, not a string'),
        ({"name": "a", "parameters": None}, '"parameters" must be a JSON object, not null'),
        ({"name": "a", "arguments": {}, "parameters": {}}, "arguments are given twice: arguments and parameters"),
        ({"name": "a", "args": {}, "x\n": 1}, 'a call has "name" and "arguments", not \'args, x\\n\''),
        ({"name": "a", "b" * 99: {}}, f'a call has "name" and "arguments", not \'{"b" * 40}...\''),
    ],
)
def test_what_is_no_call(value: object, problem: str) -> None:
    with pytest.raises(UnreadableCall) as caught:
        call_of(value, argument_keys=KEYS)
    assert str(caught.value) == problem


def test_calls_of_either_key_and_without_arguments() -> None:
    nut = {"key": "nut"}
    assert call_of({"name": "a", "arguments": nut}, argument_keys=KEYS) == ToolCall(name="a", arguments=nut)
    assert call_of({"name": "a", "parameters": nut, "type": "function"}, argument_keys=KEYS, id="i") == ToolCall(
        name="a", arguments=nut, id="i"
    )
    assert call_of({"name": "a", "id": "mine"}, argument_keys=KEYS) == ToolCall(name="a", arguments={})


def test_one_call_has_nothing_after_it() -> None:
    text = '{"name": "a", "arguments": {}} and'
    assert one_call(text, argument_keys=KEYS, whole=f"<{text}>") == MalformedCall(
        text=f"<{text}>", problem="text after the call: 'and'", name="a"
    )


def test_calls_in_a_row_end_where_they_cannot_be_read() -> None:
    good, wrong = '{"name": "a"}', '{"name": 1}'
    a = ToolCall(name="a", arguments={})
    no_name = MalformedCall(text=wrong, problem='"name" must be a string, not a number')
    broken = MalformedCall(text="so", problem="this is not JSON: Expecting value at character 1")
    assert calls_in_row(f" {good};\n{wrong} ; {good}\n", argument_keys=KEYS) == (a, no_name, a)
    assert calls_in_row(f"{good}so", argument_keys=KEYS) == (a, broken)
    assert calls_in_row(" ; \n", argument_keys=KEYS) == ()


def test_calls_are_written_as_templates_write_them() -> None:
    assert (
        written(ToolCall(name="a", arguments={"k": "\u00e9"}), "parameters")
        == '{"name": "a", "parameters": {"k": "\u00e9"}}'
    )
