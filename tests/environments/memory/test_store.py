"""What each call does to a memory, and what it answers where it does nothing."""

from __future__ import annotations

import pytest

from agentgrpo.core.types import Outcome, Passage
from agentgrpo.environments.memory.base import Applied, Change
from tests.environments.memory.calls import call, core, delete, entry, insert, memory, refused, update


def test_an_episode_of_calls() -> None:
    m = memory("three_part")
    first = entry("s1", "semantic", "Ada bakes bread", 0)
    assert insert(m, "semantic", "Ada bakes bread") == Applied(
        outcome=Outcome.SUCCESS, change=Change(op="insert", chunk=0, before=None, after=first)
    )
    moved = entry("e1", "episodic", "Ada moved in May", 1)
    assert insert(m, "episodic", "Ada moved in May", 1).change == Change(op="insert", chunk=1, before=None, after=moved)
    changed = entry("s1", "semantic", "Ada bakes no bread now", 2)
    assert update(m, "semantic", "s1", "Ada bakes no bread now", 2).change == Change(
        op="update", chunk=2, before=first, after=changed
    )
    about = entry("core", "core", "Ada, a baker", 2)
    assert core(m, "Ada, a baker", 2).change == Change(op="core", chunk=2, before=None, after=about)
    newer = entry("core", "core", "Ada, a cook", 3)
    assert core(m, "Ada, a cook", 3).change == Change(op="core", chunk=3, before=about, after=newer)
    assert (m.entries, m.core, m.num_tokens) == ((moved, changed), newer, 4 + 5 + 3)
    assert m.passages() == (
        Passage(id="core", text="Ada, a cook", title="core"),
        Passage(id="e1", text="Ada moved in May", title="episodic"),
        Passage(id="s1", text="Ada bakes no bread now", title="semantic"),
    )
    assert delete(m, "episodic", "e1", 4).change == Change(op="delete", chunk=4, before=moved, after=None)
    assert (m.entries, m.num_tokens) == ((changed,), 5 + 3)
    assert [c.op for c in m.history] == ["insert", "insert", "update", "core", "core", "delete"]


def test_a_new_memory_is_empty() -> None:
    m = memory("nine_part")
    assert (m.entries, m.core, m.history, m.num_tokens, m.passages()) == ((), None, (), 0, ())


def test_an_explicit_skip_succeeds_without_a_change() -> None:
    for schema, name in (("three_part", "memory_skip"), ("nine_part", "memory_skip"), ("keyed", "skip")):
        m = memory(schema)
        assert m.apply(call(name), chunk=0) == Applied(outcome=Outcome.SUCCESS)
        assert m.history == ()


def test_ids_are_never_reused() -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    insert(m, "semantic", "two")
    delete(m, "semantic", "s2")
    insert(m, "semantic", "three")
    insert(m, "episodic", "one")
    delete(m, "semantic", "s3")
    insert(m, "semantic", "two")
    assert [(e.id, e.text) for e in m.entries] == [("s1", "one"), ("e1", "one"), ("s4", "two")]


def test_a_refused_insert_takes_no_id() -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    insert(m, "semantic", "one")
    insert(m, "semantic", "two")
    assert [e.id for e in m.entries] == ["s1", "s2"]


def test_nine_parts() -> None:
    m = memory("nine_part")
    insert(m, "values", "spending", 0)
    insert(m, "spatiotemporal_context", "lives in Oslo", 0)
    assert m.apply(call("core_memory_update", content="a thrifty person"), chunk=1).change == Change(
        op="core", chunk=1, before=None, after=entry("core", "core", "a thrifty person", 1)
    )
    update(m, "values", "v1", "generosity", 1)
    assert [(p.id, p.title, p.text) for p in m.passages()] == [
        ("core", "core", "a thrifty person"),
        ("sc1", "spatiotemporal_context", "lives in Oslo"),
        ("v1", "values", "generosity"),
    ]


def test_keys_are_ids() -> None:
    m = memory("keyed")
    for name, text in (
        ("insert", "Velmor lives in Castin"),
        ("insert", "Velmor lives in Dortan"),
        ("insert", "Zolsun works for Pel"),
        ("update", "Velmor lives in Zoltra before Dortan"),
    ):
        assert m.apply(call(name, content=text), chunk=0).outcome == Outcome.SUCCESS
    assert [(e.id, e.text) for e in m.entries] == [
        ("Velmor lives", "Velmor lives in Castin"),
        ("Zolsun works", "Zolsun works for Pel"),
        ("Velmor lives", "Velmor lives in Zoltra before Dortan"),
    ]
    assert m.apply(call("delete", key="Velmor lives"), chunk=1).change == Change(
        op="delete",
        chunk=1,
        before=entry("Velmor lives", "fact", "Velmor lives in Zoltra before Dortan", 0),
        after=None,
    )
    assert m.apply(call("delete", key=" Velmor  lives in Castin"), chunk=1).outcome == Outcome.SUCCESS
    assert [e.text for e in m.entries] == ["Zolsun works for Pel"]


@pytest.mark.parametrize("text", ["Ada bakes bread", "  Ada\nbakes   bread\u200b "])
def test_exact_duplicates_are_refused(text: str) -> None:
    m = memory("three_part")
    insert(m, "semantic", "Ada bakes bread")
    insert(m, "semantic", "Ada owns a cat")
    says = "the entry 's1' has exactly this text already; do not repeat it"
    assert refused(m, "memory_insert", {"memory_type": "semantic", "content": text}) == says
    for id in ("s1", "s2"):
        assert refused(m, "memory_update", {"memory_type": "semantic", "memory_id": id, "new_content": text}) == says
    assert insert(m, "episodic", text).outcome == Outcome.SUCCESS
    assert insert(m, "semantic", "ada bakes bread").outcome == Outcome.SUCCESS
    core(m, text)
    assert refused(m, "memory_update", {"memory_type": "core", "new_content": text}) == (
        "the core paragraph has exactly this text already"
    )


def test_a_text_may_come_back_once_it_is_gone() -> None:
    m = memory("three_part")
    insert(m, "semantic", "one")
    update(m, "semantic", 1, "two")
    insert(m, "semantic", "one")
    delete(m, "semantic", 1)
    insert(m, "semantic", "two")
    assert [(e.id, e.text) for e in m.entries] == [("s2", "one"), ("s3", "two")]


def test_core_is_limited_in_tokens() -> None:
    m = memory("three_part", core_tokens=3)
    assert core(m, "a b c").outcome == Outcome.SUCCESS
    assert refused(m, "memory_update", {"memory_type": "core", "new_content": "a b c d"}) == (
        "the text has 4 tokens; the core paragraph has at most 3: shorten it"
    )
    assert insert(m, "semantic", "a b c d").outcome == Outcome.SUCCESS


def test_core_has_512_tokens_unless_told() -> None:
    m = memory("nine_part")
    assert m.apply(call("core_memory_update", content="a " * 512), chunk=0).outcome == Outcome.SUCCESS
    assert refused(m, "core_memory_update", {"content": "a " * 513}).startswith("the text has 513 tokens; the core ")


def test_entries_may_be_limited_in_tokens() -> None:
    m = memory("three_part", entry_tokens=2)
    assert insert(m, "semantic", "a b").outcome == Outcome.SUCCESS
    says = "the text has 3 tokens; an entry has at most 2: shorten it"
    assert refused(m, "memory_insert", {"memory_type": "semantic", "content": "a b c"}) == says
    assert refused(m, "memory_update", {"memory_type": "semantic", "memory_id": 1, "new_content": "a b c"}) == says
    assert core(m, "a b c").outcome == Outcome.SUCCESS
