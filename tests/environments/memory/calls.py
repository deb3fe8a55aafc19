"""Calls, counts and a written memory for the tests of memories."""

from __future__ import annotations

from typing import Any

from agentgrpo.core.types import Outcome, ToolCall
from agentgrpo.environments.memory.base import Applied, MemoryEntry
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.store import Memory


def words(text: str) -> int:
    """A tokenizer's count that can be done by hand."""
    return len(text.split())


def memory(schema: str, **limits: Any) -> Memory:
    return Memory(SCHEMAS[schema], words, **limits)


def call(name: Any, arguments: Any = None, /, **named: Any) -> ToolCall:
    return ToolCall(name=name, arguments=named if arguments is None else arguments)


def entry(id: str, kind: str, text: str, chunk: int) -> MemoryEntry:
    return MemoryEntry(id=id, kind=kind, text=text, chunk=chunk)


def insert(m: Memory, kind: str, text: Any, chunk: int = 0) -> Applied:
    return m.apply(call("memory_insert", memory_type=kind, content=text), chunk=chunk)


def update(m: Memory, kind: str, id: Any, text: Any, chunk: int = 0) -> Applied:
    return m.apply(call("memory_update", memory_type=kind, memory_id=id, new_content=text), chunk=chunk)


def delete(m: Memory, kind: str, id: Any, chunk: int = 0) -> Applied:
    return m.apply(call("memory_delete", memory_type=kind, memory_id=id), chunk=chunk)


def core(m: Memory, text: Any, chunk: int = 0) -> Applied:
    return m.apply(call("memory_update", memory_type="core", new_content=text), chunk=chunk)


def refused(m: Memory, name: Any, arguments: Any) -> str:
    """The detail of a call that must be INVALID_ARGS and change nothing."""
    before = m.to_json()
    applied = m.apply(call(name, arguments), chunk=9)
    assert (applied.outcome, applied.change) == (Outcome.INVALID_ARGS, None)
    assert m.to_json() == before
    return applied.detail


def kept() -> Memory:
    m = memory("three_part")
    core(m, "Ada, a baker", 0)
    insert(m, "semantic", "Ada bakes bread", 0)
    insert(m, "episodic", "Ada moved in May", 1)
    update(m, "semantic", "s1", "Ada bakes cakes", 2)
    core(m, "Ada, a pastry cook", 2)
    insert(m, "semantic", "Ada owns a cat", 3)
    delete(m, "episodic", "e1", 4)
    return m
