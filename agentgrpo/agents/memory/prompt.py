"""What the policy is shown of one chunk: its instructions, the memory so far, the chunk.

    You keep a memory ...              a system message, where there are instructions
    Memory:
    semantic:                          not where a schema has but one kind, whose entries are their own ids
     [s1] Velmor lives in Castin
    Chunk: Velmor moved to Roka.

All of it is message text, so none of it is trusted: a chunk or an entry may spell whatever it likes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgrpo.memory.base import Entry
from agentgrpo.memory.schema import CORE, Schema
from agentgrpo.types import Message

_WORD = re.compile(r"\w+")
_CAPITALISED = 3
"""How much a capitalised word counts: most are names."""


def messages(schema: Schema, instructions: str | None, entries: Sequence[Entry], chunk: str) -> tuple[Message, ...]:
    """entries: those to be shown, oldest first, the core paragraph anywhere among them."""
    lines = ["Memory:"]
    for kind in (CORE, *schema.kinds):
        of_kind = [e for e in entries if e.kind == kind]
        if of_kind and not schema.is_keyed:
            lines.append(f"{kind}:")
        # a space begins every text, so that its first word is encoded as anywhere else
        lines += [f" {e.text}" if schema.is_keyed or kind == CORE else f" [{e.id}] {e.text}" for e in of_kind]
    user = Message(role="user", content="\n".join([*lines, f"Chunk: {chunk.strip()}"]))
    return (user,) if instructions is None else (Message(role="system", content=instructions), user)


def shown(entries: Sequence[Entry], chunk: str, *, count: int, matching: bool) -> list[Entry]:
    """At most `count` of each kind, in the order given, which is oldest first: the newest, or those that share most
    with the chunk, of equal ones the newest."""
    places = range(len(entries))
    words = set(_WORD.findall(chunk)) if matching else set()
    best = sorted(places, key=lambda i: (-_shared(entries[i].text, words), -i)) if matching else reversed(places)
    room: dict[str, int] = {}
    chosen = []
    for i in best:
        left = room.setdefault(entries[i].kind, count)
        if left:
            chosen.append(i)
            room[entries[i].kind] = left - 1
    return [entries[i] for i in sorted(chosen)]


def _shared(text: str, words: set[str]) -> int:
    common = words.intersection(_WORD.findall(text))
    return sum(_CAPITALISED if word[0].isupper() else 1 for word in common)
