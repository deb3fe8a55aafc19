"""How calls are read: what is forgiven, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentgrpo.core.messages import MalformedCall
from agentgrpo.core.types import Outcome
from agentgrpo.environments.memory.base import Applied, Change
from agentgrpo.environments.memory.store import MAX_CHARS, MAX_DETAIL, Memory
from tests.environments.memory.calls import call, core, delete, entry, insert, memory, refused, words


@pytest.mark.parametrize(
    "given", ["s2", " S2 ", "[s2]", "#2", "2", 2, "(2)", "s 2", "s_2", "s002", "'s2'", "s2.", "<s2>"]
)
def test_ids_as_models_write_them(given: Any) -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    insert(m, "semantic", "two")
    assert delete(m, " Semantic", given).change == Change(
        op="delete", chunk=0, before=entry("s2", "semantic", "two", 0), after=None
    )


@pytest.mark.parametrize(
    "given", ["-2", -2, "2.0", 2.5, "s", "", "two", "s2 s1", "s3", "e2", "0", 10**18, "s2" + " " * 40]
)
def test_ids_that_name_nothing(given: Any) -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    insert(m, "semantic", "two")
    detail = refused(m, "memory_delete", {"memory_type": "semantic", "memory_id": given})
    assert detail.startswith("semantic has no entry ")
    assert detail.endswith("the newest there are s2, s1")


@pytest.mark.parametrize(
    "given, text", [(5, "5"), (-1.5, "-1.5"), (2**64 - 1, "18446744073709551615"), (" a\n\tb ", "a b")]
)
def test_content_as_models_write_it(given: Any, text: str) -> None:
    m = memory("three_part")
    insert(m, "semantic", given)
    assert [e.text for e in m.entries] == [text]


@pytest.mark.parametrize(
    "given, text",
    [
        ("a\x00b\x1b[31mc\x7f\x85d", "a b [31mc d"),
        ("line\r\nline\u2028line\u2029line\x0bline", "line line line line line"),
        ("\ufeffa\u200bb\u202ec\u2066", "abc"),
        ("\u00a0a\u3000b", "a b"),
        ("نامه‌ای 👩‍🚀", "نامه‌ای 👩‍🚀"),
        ('{"content": "x"}', '{"content": "x"}'),
        ("x" * MAX_CHARS, "x" * MAX_CHARS),
    ],
)
def test_texts_are_one_visible_line(given: str, text: str) -> None:
    m = memory("three_part")
    insert(m, "semantic", given)
    core(m, given)
    assert [p.text for p in m.passages()] == [text, text]


@pytest.mark.parametrize("given", ["", " \n", "\x00\x1b", "\u200b\u200e", "\u200d", "\u00ad", None])
def test_empty_texts_are_refused(given: Any) -> None:
    says = "content is empty; write at least one word, or skip"
    if given is None:
        says = "the argument content is missing; needed: memory_type, content"
    assert refused(memory("three_part"), "memory_insert", {"memory_type": "semantic", "content": given}) == says


X = {"memory_type": "semantic", "content": "x"}
CORE = {"memory_type": "core"}
ONE = {"memory_type": "semantic", "memory_id": "s1"}
NO_CORE = "memory_type=core: the core paragraph can only be replaced, by memory_update with memory_type=core"


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("insert", {}, "the argument memory_type is missing; needed: memory_type, content"),
        ("insert", {"memory_type": "semantic"}, "the argument content is missing; needed: memory_type, content"),
        ("insert", X | {"memory_type": None}, "the argument memory_type is missing; needed: memory_type, content"),
        (
            "insert",
            X | {"memory_type": "semantics"},
            "memory_type must be one of semantic, episodic, not 'semantics'. Did you mean 'semantic'?",
        ),
        (
            "insert",
            X | {"memory_type": "semantic" + " " * 99 + "x"},
            "memory_type must be one of semantic, episodic, not 'semantic ...'. Did you mean 'semantic'?",
        ),
        ("insert", X | {"memory_type": 3}, "memory_type must be one of semantic, episodic, not '3'."),
        ("insert", X | {"memory_type": ["semantic"]}, "memory_type must be a text, not a list"),
        ("insert", X | {"memory_type": "Core"}, NO_CORE),
        ("delete", {"memory_type": "core", "memory_id": "core"}, NO_CORE),
        ("insert", X | {"content": {"text": "x"}}, "content must be a text, not an object"),
        ("insert", X | {"content": ["x"]}, "content must be a text, not a list"),
        ("insert", X | {"content": True}, "content must be a text, not a truth value"),
        ("insert", X | {"content": float("nan")}, "content must be a text, not a number out of range"),
        ("insert", X | {"content": float("-inf")}, "content must be a text, not a number out of range"),
        ("insert", X | {"content": 10**5000}, "content must be a text, not a number out of range"),
        ("insert", X | {"content": "\ud800x"}, "content is not valid Unicode: it has half a surrogate pair"),
        (
            "insert",
            X | {"content": "x" * (MAX_CHARS + 1)},
            "content has 20001 characters; at most 20000 are read: write a short note",
        ),
        ("insert", X | {"memory_id": "s1"}, "unknown argument 'memory_id'; allowed: memory_type, content"),
        ("insert", X | {1: 2}, "unknown argument a number; allowed: memory_type, content"),
        ("insert", X | {"\ud800\n": 2}, "unknown argument '\\ud800\\n'; allowed: memory_type, content"),
        ("insert", json.dumps(X), "the arguments must be a JSON object, not a text"),
        ("insert", [X], "the arguments must be a JSON object, not a list"),
        ("insert", 3, "the arguments must be a JSON object, not a number"),
        ("skip", {"reason": "nothing new"}, "unknown argument 'reason'; allowed: none"),
        (
            "update",
            {"memory_type": "semantic", "new_content": "x"},
            "the argument memory_id is missing; name the entry of semantic to change, such as s1",
        ),
        ("update", ONE | {"content": "x"}, "unknown argument 'content'; allowed: memory_type, memory_id, new_content"),
        ("update", ONE | {"new_content": "x"}, "there is no entry 's1': semantic is empty"),
        (
            "update",
            {"memory_type": "core", "new_content": ""},
            "new_content is empty; write at least one word, or skip",
        ),
    ],
)
def test_calls_that_are_refused(name: str, arguments: Any, says: str) -> None:
    assert refused(memory("three_part"), f"memory_{name}", arguments) == says


def published(m: Memory, name: str, **arguments: Any) -> Applied:
    applied = m.apply(call(name, arguments), chunk=0)
    assert applied.outcome is Outcome.SUCCESS, applied.detail
    return applied


def test_mem_alphas_own_calls() -> None:
    """As its functions.py names them, types with _memory at their end; without it they are understood too."""
    m = memory("mem_alpha")
    published(m, "new_memory_insert", memory_type="semantic_memory", content="one")
    published(m, "new_memory_insert", memory_type="episodic", content="two")
    published(m, "memory_update", memory_type="semantic_memory", new_content="three", memory_id="s1")
    published(m, "memory_update", memory_type="core_memory", new_content="Ada")
    assert [(p.title, p.text) for p in m.passages()] == [("core", "Ada"), ("episodic", "two"), ("semantic", "three")]
    published(m, "memory_delete", memory_type="episodic_memory", memory_id="e1")
    emptied = published(m, "memory_delete", memory_type="core_memory", memory_id="core")
    assert (emptied.change, m.core) == (
        Change(op="core", chunk=0, before=entry("core", "core", "Ada", 0), after=None),
        None,
    )
    assert (m.num_tokens, [e.text for e in m.entries]) == (1, ["three"])
    assert Memory.from_json(m.to_json(), words) == m


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("memory_delete", {"memory_type": "core_memory"}, "the core paragraph is empty already"),
        (
            "new_memory_insert",
            {"memory_type": "core_memory", "content": "x"},
            NO_CORE.replace("=core", "=core_memory"),
        ),
        (
            "memory_update",
            {"memory_type": "semantic_memory", "new_content": "x"},
            "the argument memory_id is missing; name the entry of semantic_memory to change, such as s1",
        ),
    ],
)
def test_mem_alphas_calls_that_are_refused(name: str, arguments: Any, says: str) -> None:
    assert refused(memory("mem_alpha"), name, arguments) == says


@pytest.mark.parametrize(
    "schema, name, arguments",
    [
        ("three_part", "memory_insert", X | {"category": "work", "importance": 5}),
        ("three_part", "memory_insert", {"content": "x", "category": "Semantic", "importance": None}),
        ("mem_alpha", "new_memory_insert", {"content": "x", "category": "semantic_memory", "importance": "high"}),
        ("nine_part", "memory_insert", {"memory_type": "values", "content": "x", "category": "semantic"}),
        ("keyed", "insert", {"content": "x", "category": ["a"], "importance": 0.5}),
    ],
)
def test_category_and_importance_are_accepted_and_not_kept(schema: str, name: str, arguments: Any) -> None:
    m = memory(schema)
    published(m, name, **arguments)
    plain = {"three_part": "semantic", "mem_alpha": "semantic", "nine_part": "values", "keyed": "fact"}
    assert [(e.kind, e.text) for e in m.entries] == [(plain[schema], "x")]


def test_a_category_that_is_no_type_does_not_replace_one() -> None:
    says = "the argument memory_type is missing; needed: memory_type, content"
    assert refused(memory("three_part"), "memory_insert", {"content": "x", "category": "work"}) == says
    assert refused(memory("three_part"), "memory_delete", ONE | {"category": "work"}).startswith("unknown argument")


def test_an_id_of_another_type_is_refused() -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    insert(m, "episodic", "two")
    for name, more in (("memory_delete", {}), ("memory_update", {"new_content": "three"})):
        assert refused(m, name, {"memory_type": "episodic", "memory_id": "s1"} | more) == (
            "episodic has no entry 's1'; the newest there are e1"
        )


def test_core_of_nine_parts_is_not_replaced_as_an_entry() -> None:
    arguments = {"memory_type": "core", "memory_id": "core", "new_content": "x"}
    assert refused(memory("nine_part"), "memory_update", arguments) == (
        "memory_type=core: the core paragraph can only be replaced, by core_memory_update"
    )


@pytest.mark.parametrize(
    "name", ["memory_insrt", "insert", "", "MEMORY_INSERT", None, 3, ["memory_insert"], "x" * 10**6]
)
def test_unknown_tools(name: Any) -> None:
    m = memory("three_part")
    applied = m.apply(call(name, memory_type="semantic", content="x"), chunk=0)
    assert (applied.outcome, applied.change, m.history) == (Outcome.TOOL_NOT_FOUND, None, ())
    assert "; there are memory_insert, memory_update, memory_delete, memory_skip." in applied.detail


def test_a_malformed_call_is_answered_with_its_problem() -> None:
    applied = memory("keyed").apply(MalformedCall(text="<insert>", problem="it does\nnot\x1b end\ud800"), chunk=0)
    assert applied == Applied(outcome=Outcome.INVALID_ARGS, detail="it does not end\\ud800")


def test_details_are_short() -> None:
    applied = memory("keyed").apply(MalformedCall(text="", problem="x" * 10_000), chunk=0)
    assert applied.detail == "x" * MAX_DETAIL


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("insert", {"content": "Velmor lives in Castin"}, "the entry 'Velmor lives' has exactly this text already"),
        ("update", {"content": "Velmor lives in Castin"}, "the entry 'Velmor lives' has exactly this text already"),
        (
            "update",
            {"content": "Velmor works for Pel"},
            "fact has no entry that begins with 'Velmor works'; the newest",
        ),
        ("delete", {"key": "Velmor"}, "fact has no entry that begins with 'Velmor'; the newest there are Velmor lives"),
        ("delete", {"key": " "}, "key is empty"),
        ("delete", {"content": "Velmor lives"}, "unknown argument 'content'; allowed: key"),
    ],
)
def test_keyed_calls_that_fail(name: str, arguments: Mapping[str, Any], says: str) -> None:
    m = memory("keyed")
    m.apply(call("insert", content="Velmor lives in Castin"), chunk=0)
    assert refused(m, name, arguments).startswith(says)


def test_update_of_an_empty_keyed_memory_fails() -> None:
    detail = refused(memory("keyed"), "update", {"content": "Velmor lives in Castin"})
    assert detail == "there is no entry 'Velmor lives': fact is empty"
