"""What actions of OpenEnv servers are to the policy, and what observations are as text."""

from __future__ import annotations

from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Outcome
from agentgrpo.environments.openenv.environment import OpenEnvEnvironments, seed_of
from agentgrpo.environments.openenv.forms import (
    ActForm,
    McpForm,
    TextForm,
    call_of,
    form_of,
    result_of,
    spec_of,
    text_of,
)
from tests.builders import task

METADATA = {"type": "object"}
MESSAGE = {"type": "string"}
NUMBER = {"type": "integer"}


def action(**fields: Any) -> dict[str, Any]:
    return {"title": "Action", "properties": {"metadata": METADATA, **fields}, "required": list(fields)}


def test_an_action_of_one_text_is_the_policys_text() -> None:
    form = form_of(action(message=MESSAGE))
    assert form == TextForm("message")
    assert form.action("hi") == {"message": "hi"}
    assert form_of(action(move={"anyOf": [MESSAGE, {"type": "null"}]})) == TextForm("move")


@pytest.mark.parametrize("fields", [{"number": NUMBER}, {"code": MESSAGE, "timeout": NUMBER}])
def test_any_other_action_is_a_tool_whose_arguments_are_the_fields(fields: dict[str, Any]) -> None:
    form = form_of({**action(**fields), "description": "What  is\ndone.", "$defs": {"Kind": {"enum": [1]}}})
    assert isinstance(form, ActForm)
    assert form.spec.name == "act"
    assert form.spec.description == "What is done."
    assert form.spec.parameters == {"type": "object", "properties": fields, "required": [*fields]}


def test_definitions_stand_where_they_are_referred_to() -> None:
    move = {"enum": ["north", "south"], "title": "Move", "type": "string"}
    leaf = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Leaf"}}}
    pair = {"type": "array", "items": {"$ref": "#/$defs/Move"}}
    fields = {"move": {"$ref": "#/$defs/Move", "default": "north"}, "both": {"$ref": "#/$defs/Pair"}}
    form = form_of({**action(**fields), "$defs": {"Move": move, "Pair": pair}})
    assert isinstance(form, ActForm)
    assert form.spec.parameters["properties"] == {
        "move": {**move, "default": "north"},
        "both": {"type": "array", "items": move},
    }
    assert "$defs" not in form.spec.parameters
    again = form_of({**action(leaf={"$ref": "#/$defs/Leaf"}, number=NUMBER), "$defs": {"Leaf": leaf}})
    assert isinstance(again, ActForm)
    assert again.spec.parameters["properties"]["leaf"] == leaf
    assert again.spec.parameters["$defs"] == {"Leaf": leaf}


def test_a_field_can_be_named_that_takes_the_text() -> None:
    assert form_of(action(code=MESSAGE, timeout=NUMBER), "code") == TextForm("code")
    with pytest.raises(ConfigError, match=r"environment.text_field=cod; fields of the server's actions are code"):
        form_of(action(code=MESSAGE), "cod")


def test_what_has_only_one_value_is_no_choice_of_the_policys() -> None:
    assert form_of(action(type={"const": "say", "type": "string"}, message=MESSAGE)) == TextForm("message")


def test_an_action_that_calls_a_tool_leads_to_the_tools_that_are_listed() -> None:
    assert form_of(action(type={"const": "call_tool"}, tool_name=MESSAGE, arguments=METADATA)) == McpForm()
    assert form_of(action()) == McpForm()
    spec = spec_of({"name": "add", "description": "Adds\n two.", "inputSchema": {"type": "object"}})
    assert (spec.name, spec.description, spec.parameters) == ("add", "Adds two.", {"type": "object"})
    assert call_of("add", {"a": 1}) == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}


@pytest.mark.parametrize(
    "observation, shown, text",
    [
        ({"text": "Hello", "metadata": {"step": 1}}, (), "Hello"),
        ({"board": "x", "legal": [1, 2], "nothing": None, "empty": ""}, (), "board: x\nlegal: [1, 2]"),
        ({"board": "x", "legal": [1, 2]}, ("board",), "x"),
        ({"metadata": {"message": "Ready"}}, (), "Ready"),
        ({"won": False, "score": 0}, (), "won: false\nscore: 0"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, ("messages",), "a\nb"),
    ],
)
def test_an_observation_is_its_text_or_a_line_for_each_field(
    observation: dict[str, Any], shown: tuple[str, ...], text: str
) -> None:
    assert text_of(observation, shown) == text


@pytest.mark.parametrize(
    "observation, outcome, text",
    [
        ({"result": {"content": [{"type": "text", "text": "3"}], "is_error": False}}, Outcome.SUCCESS, "3"),
        ({"result": {"content": [{"type": "image"}]}}, Outcome.SUCCESS, "[image]"),
        (
            {"result": {"content": [{"type": "text", "text": "no"}], "is_error": True}},
            Outcome.RUNTIME_ERROR,
            "error: no",
        ),
        ({"result": None, "error": {"message": "not sold"}}, Outcome.RUNTIME_ERROR, "error: not sold"),
        ({"result": 5, "error": None}, Outcome.SUCCESS, "5"),
        ({"shelf": "full"}, Outcome.SUCCESS, "full"),
    ],
)
def test_the_result_of_a_call(observation: dict[str, Any], outcome: Outcome, text: str) -> None:
    result = result_of({"tool_name": "add", **observation} if "result" in observation else observation)
    assert (result.outcome, result.text) == (outcome, text)


def test_attempts_at_a_task_have_its_seed() -> None:
    assert seed_of(task(id="a")) == seed_of(task(id="a"))
    assert seed_of(task(id="a")) != seed_of(task(id="b"))


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "neither is given"),
        ({"url": "http://a", "command": "python a {port}"}, "both are given"),
        ({"url": "http://a", "max_turns": 0}, "environment.max_turns 0: 1 or more is allowed"),
        ({"url": "http://a", "timeout_s": 0}, "environment.timeout_s 0: more than 0 is allowed"),
        ({"command": "python my_server.py"}, "it names no port; write {port} in place"),
        ({"command": "no-such-program --port {port}"}, "there is no program 'no-such-program'"),
    ],
)
def test_settings_that_cannot_be_meant(given: dict[str, Any], said: str) -> None:
    pytest.importorskip("websockets")
    with pytest.raises(ConfigError) as refused:
        OpenEnvEnvironments(renderer=None, **given)  # type: ignore[arg-type]
    assert said in str(refused.value)
