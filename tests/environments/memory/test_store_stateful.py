"""Any sequence of calls, against a model too simple to be wrong: a list that is searched and counted anew each time."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.messages import AnyCall, MalformedCall
from agentgrpo.core.types import Outcome, Passage, ToolCall
from agentgrpo.environments.memory.base import Applied, Change, MemoryEntry
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.store import MAX_DETAIL, Memory, normalised
from tests.environments.memory.calls import call, memory, words
from tests.thorough import examples, siblings

CORE_TOKENS, ENTRY_TOKENS = 5, 6
VOCABULARY = ["Ada", "Bo", "lives", "in", "Oslo", "naïve", "猫", "🙂", "s1", "42", "[e1]"]
BETWEEN = [" ", "  ", "\n", "\t", "\u00a0", " \x00", "\x1b ", "\u2028", " \u200b"]
NONSENSE: list[Any] = [
    None,
    True,
    [],
    ["x"],
    {},
    {"text": "x"},
    float("nan"),
    10**5000,
    "\udc00",
    "",
    " \n\x00",
    "\u200d",
]


@dataclass(frozen=True)
class Wish:
    """What a well-formed call asks for."""

    op: str
    kind: str = ""
    id: str = ""
    text: str = ""


@dataclass
class Naive:
    schema: str
    held: list[MemoryEntry] = field(default_factory=list)
    core: MemoryEntry | None = None
    made: list[MemoryEntry] = field(default_factory=list)
    """Every entry ever inserted."""

    def do(self, wish: Wish, chunk: int) -> tuple[bool, Change | None]:
        """Whether it succeeds, and what it changes."""
        if wish.op == "skip":
            return True, None
        if wish.op == "core":
            held = self.core.text if self.core else ""
            if len(wish.text.split()) > CORE_TOKENS or held == wish.text:
                return False, None
            before, self.core = self.core, None
            if wish.text:
                self.core = MemoryEntry(id="core", kind="core", text=wish.text, chunk=chunk)
            return True, Change(op="core", chunk=chunk, before=before, after=self.core)
        if wish.op != "delete" and (
            len(wish.text.split()) > ENTRY_TOKENS or (wish.kind, wish.text) in {(e.kind, e.text) for e in self.held}
        ):
            return False, None
        return self._write(wish, chunk)

    def _write(self, wish: Wish, chunk: int) -> tuple[bool, Change | None]:
        if wish.op == "insert":
            entry = MemoryEntry(id=self._new_id(wish), kind=wish.kind, text=wish.text, chunk=chunk)
            self.made.append(entry)
            self.held.append(entry)
            return True, Change(op="insert", chunk=chunk, before=None, after=entry)
        found = [e for e in self.held if (e.kind, e.id) == (wish.kind, wish.id)]
        if not found:
            return False, None
        self.held.remove(found[-1])
        if wish.op == "delete":
            return True, Change(op="delete", chunk=chunk, before=found[-1], after=None)
        self.held.append(replace(found[-1], text=wish.text, chunk=chunk))
        return True, Change(op="update", chunk=chunk, before=found[-1], after=self.held[-1])

    def _new_id(self, wish: Wish) -> str:
        if self.schema == "keyed":
            return " ".join(wish.text.split(" ")[:2])
        initials = "".join(part[:1] for part in wish.kind.split("_"))
        return f"{initials}{sum(e.kind == wish.kind for e in self.made) + 1}"

    def documents(self) -> list[MemoryEntry]:
        return [*([self.core] if self.core else []), *self.held]


class Policy:
    """Draws calls: most are well-formed, however they are spelled; the others must all be refused."""

    def __init__(self, schema: str, seed: int) -> None:
        self.schema, self.random = SCHEMAS[schema], Random(seed)

    def turn(self, naive: Naive) -> tuple[AnyCall, Wish | None]:
        """A call and what it asks for; None = it must fail."""
        if self.random.random() < 0.25:
            return self._hostile(), None
        return self._keyed(naive) if self.schema.is_keyed else self._typed(naive)

    def _keyed(self, naive: Naive) -> tuple[AnyCall, Wish]:
        op, text = self.random.choice(["insert", "insert", "update", "delete", "skip"]), self._words(4)
        key = " ".join(text.split(" ")[:2])
        if op == "skip":
            return call("skip"), Wish(op)
        if op == "delete":
            return call("delete", key=self._spelled(self.random.choice([key, text]))), Wish(op, "fact", key)
        return call(op, content=self._spelled(text)), Wish(op, "fact", "" if op == "insert" else key, text)

    def _typed(self, naive: Naive) -> tuple[AnyCall, Wish]:
        last = ["core", "skip" if self.schema.has_skip else "empty"]
        op = self.random.choice(["insert"] * 4 + ["update"] * 3 + ["delete"] * 2 + last)
        kind, text = self.random.choice(list(self.schema.kinds)[:3]), self._words(8)
        if naive.held and self.random.random() < 0.2:
            text = self.random.choice(naive.held).text
        called = self.random.choice([kind, f"{kind}{self.schema.suffix}"])
        spelled, type_ = self._spelled(text), self.random.choice([called, called.upper(), f" {called}\n"])
        if op == "skip":
            return call("memory_skip"), Wish(op)
        if op == "empty":
            return call("memory_delete", memory_type="core_memory"), Wish("core", "core")
        if op == "core":
            return self._core(spelled), Wish(op, "core", "", text)
        if op == "insert":
            return call(self.schema.specs[0].name, memory_type=type_, content=spelled), Wish(op, kind, "", text)
        number, owner = self.random.randint(0, 9), self.random.choice([kind] * 9 + list(self.schema.kinds))
        id = "".join(part[0] for part in owner.split("_")) + str(number)
        bare = [number, str(number), f" #{number} "] if owner == kind else []
        given = self.random.choice([id, id.upper(), f"[{id}]", *bare])
        if op == "delete":
            return call("memory_delete", memory_type=type_, memory_id=given), Wish(op, kind, id)
        arguments = {"memory_type": type_, "memory_id": given, "new_content": spelled}
        return call("memory_update", arguments), Wish(op, kind, id, text)

    def _core(self, text: str) -> ToolCall:
        if self.schema.name == "nine_part":
            return call("core_memory_update", content=text)
        return call(
            "memory_update", {"memory_type": "core", "new_content": text} | self.random.choice([{}, {"memory_id": 1}])
        )

    def _hostile(self) -> AnyCall:
        random = self.random
        spec = random.choice([s for s in self.schema.specs if s.parameters["properties"]])
        right: dict[Any, Any] = {
            p: about.get("enum", ["x y"])[-1] for p, about in spec.parameters["properties"].items()
        }
        missing = random.choice(spec.parameters["required"])
        return random.choice(
            [
                MalformedCall(text="<x", problem=random.choice(["no\nend", "", "\ud800", "x" * 999])),
                call(random.choice(["", "forget", spec.name.upper(), None, 7, "x" * 9999, "memory_core"]), right),
                call(spec.name, random.choice([None, "", json.dumps(right), [right], 3, True, [[]], {}])),
                call(spec.name, {k: v for k, v in right.items() if k != missing}),
                call(spec.name, right | {missing: random.choice(NONSENSE)}),
                call(spec.name, right | {random.choice(["reason", "", "\ud800", 3, None, ("x",)]): "x"}),
                call(
                    spec.name, right | {"memory_type": random.choice(["", "sem", "facts", 0, "\udfff", "core" * 999])}
                ),
                call(spec.name, right | {missing: "x " * 10_001 if missing != "memory_type" else "x"}),
            ]
        )

    def _words(self, most: int) -> str:
        return " ".join(self.random.choice(VOCABULARY) for _ in range(self.random.randint(1, most)))

    def _spelled(self, text: str) -> str:
        ends = self.random.choice(BETWEEN), self.random.choice(BETWEEN)
        return "".join([ends[0], *(w + self.random.choice(BETWEEN) for w in text.split(" ")), ends[1]])


def undone(entries: list[MemoryEntry], change: Change) -> list[MemoryEntry]:
    without = [e for e in entries if e != change.after]
    assert len(without) == len(entries) - (change.after is not None)
    return [*without, *([change.before] if change.before else [])]


def check_refusal(applied: Applied) -> None:
    assert applied.outcome in (Outcome.INVALID_ARGS, Outcome.TOOL_NOT_FOUND)
    assert applied.change is None
    assert applied.detail
    assert applied.detail.split() == applied.detail.split(" "), "one line"
    assert applied.detail.encode()
    assert len(applied.detail) <= MAX_DETAIL


def check_history(m: Memory) -> None:
    entries = [*([m.core] if m.core else []), *m.entries]
    for change in reversed(m.history):
        entries = undone(entries, change)
    assert entries == []
    again = Memory.from_json(
        json.loads(json.dumps(m.to_json())), words, core_tokens=CORE_TOKENS, entry_tokens=ENTRY_TOKENS
    )
    assert again == m
    assert (again.passages(), again.num_tokens) == (m.passages(), m.num_tokens)
    kind = next(iter(m.schema.kinds))
    arguments = {"content": "quite new"} | ({} if m.schema.is_keyed else {"memory_type": kind})
    name = m.schema.specs[0].name
    assert again.apply(call(name, arguments), chunk=99) == deepcopy(m).apply(call(name, arguments), chunk=99)


@pytest.mark.parametrize("seed", siblings(range(4), quick=1))
@pytest.mark.parametrize("schema", SCHEMAS)
def test_any_sequence_of_calls(schema: str, seed: int) -> None:
    m = memory(schema, core_tokens=CORE_TOKENS, entry_tokens=ENTRY_TOKENS)
    naive, policy = Naive(schema), Policy(schema, seed)
    seen = {True: 0, False: 0}
    changes: list[Change] = []
    for number in range(500):
        sampled, wish = policy.turn(naive)
        applied = m.apply(sampled, chunk=number // 7)
        succeeds, change = (False, None) if wish is None else naive.do(wish, number // 7)
        seen[succeeds] += 1
        if succeeds:
            assert applied == Applied(outcome=Outcome.SUCCESS, change=change), sampled
        else:
            check_refusal(applied)
        changes += [change] if change else []
        documents = naive.documents()
        assert m.history == tuple(changes)
        assert (m.core, m.entries) == (naive.core, tuple(naive.held))
        assert m.passages() == tuple(Passage(id=e.id, text=e.text, title=e.kind) for e in documents)
        assert m.num_tokens == sum(words(e.text) for e in documents)
        assert len({(e.kind, e.text) for e in m.entries}) == len(m.entries)
        if number % 100 == 99:
            check_history(m)
    assert len(set(naive.made)) == len(naive.made)
    assert min(seen.values()) > 100, "too few calls of one sort to show anything"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_same_calls_make_the_same_memory(schema: str) -> None:
    def after(seed: int) -> Memory:
        m, naive, policy = memory(schema), Naive(schema), Policy(schema, seed)
        for chunk in range(100):
            m.apply(policy.turn(naive)[0], chunk=chunk)
        return m

    assert after(1) == after(1)
    assert after(1) != after(2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["memory_type", "memory_id", "new_content", "content", "key"]
TYPES = ["core", "semantic", "Episodic ", "values", "fact"]
ARGUMENTS = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=5), JSON | st.sampled_from([*TYPES, "s1", 1, "a b", "a  b"]), max_size=4
)
CALLS = st.builds(
    call,
    st.sampled_from([name for schema in SCHEMAS.values() for name in schema.operations]) | st.text(max_size=10) | JSON,
    ARGUMENTS | JSON.filter(lambda value: value is not None),
) | st.builds(MalformedCall, text=st.text(), problem=st.text(st.characters()))


@pytest.mark.parametrize("schema", SCHEMAS)
@settings(deadline=None, max_examples=examples(150))
@given(calls=st.lists(CALLS, max_size=8))
def test_no_call_raises_and_a_failing_one_changes_nothing(schema: str, calls: list[AnyCall]) -> None:
    m = memory(schema, core_tokens=CORE_TOKENS, entry_tokens=ENTRY_TOKENS)
    for chunk, sampled in enumerate(calls):
        before, history = m.to_json(), m.history
        applied = m.apply(sampled, chunk=chunk)
        if applied.outcome == Outcome.SUCCESS:
            assert m.history == (*history, *([applied.change] if applied.change else []))
        else:
            check_refusal(applied)
            assert m.to_json() == before
    assert m.num_tokens == sum(words(p.text) for p in m.passages())
    check_history(m)


@settings(deadline=None)
@given(text=st.text(st.characters()))
def test_a_normalised_text_is_one_line_and_stays_as_it_is(text: str) -> None:
    clean = normalised(text)
    assert normalised(clean) == clean
    assert clean.split() == (clean.split(" ") if clean else [])
