"""The policy's prompt for one chunk: instructions, the memory so far, the chunk.

    You keep a memory ...              a system message, if there are instructions
    Memory:
    semantic:                          omitted in a keyed schema, whose one kind has entries without ids
     [s1] Velmor lives in Castin
    Chunk: Velmor moved to Roka.

The whole prompt is untrusted message text: a chunk or an entry may contain any text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgrpo.core.types import Message
from agentgrpo.environments.memory.base import MemoryEntry
from agentgrpo.environments.memory.schema import CORE, Schema

_WORD = re.compile(r"\w+")
_CAPITALISED = 3
"""Weight of a capitalised word, because most are names."""


def messages(
    schema: Schema, instructions: str | None, entries: Sequence[MemoryEntry], chunk: str
) -> tuple[Message, ...]:
    """entries: the entries to show, oldest first, with the core paragraph at any position."""
    lines = ["Memory:"]
    for kind in (CORE, *schema.kinds):
        of_kind = [e for e in entries if e.kind == kind]
        if of_kind and not schema.is_keyed:
            lines.append(f"{kind}{schema.suffix}:")
        # a space begins every text, so that its first word is encoded as anywhere else
        lines += [f" {e.text}" if schema.is_keyed or kind == CORE else f" [{e.id}] {e.text}" for e in of_kind]
    user = Message(role="user", content="\n".join([*lines, f"Chunk: {chunk.strip()}"]))
    return (user,) if instructions is None else (Message(role="system", content=instructions), user)


def shown(entries: Sequence[MemoryEntry], chunk: str, *, count: int, matching: bool) -> list[MemoryEntry]:
    """Choose at most `count` entries of each kind, and keep the order given, oldest first: the newest, or the entries
    that share most words with the chunk, the newest among equals."""
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


# --- Instructions for a policy that was not trained to keep a memory: what to store, how to update, when to skip.

_TASK = """\
You keep a memory of a long text that you read one chunk at a time. You see the memory as it is now and the next
chunk, and never an earlier chunk again. Later, questions will be answered from the memory alone."""

_ENTRIES = """\
Call the tools to change the memory; several calls may follow each other.
- Insert what the chunk says and may be asked about: who, what, when and where, preferences, plans, decisions. Write
  one short entry for each thing, which can be understood by itself: names instead of pronouns, dates instead of
  "yesterday".
- Update the entry, by its id, where the chunk changes or completes it; keep what was true before where that may be
  asked about. Delete what the chunk asks to forget or shows to be wrong.
- Do not store what is stored already, small talk, rumours, or what the chunk does not say.
- The shorter the memory, the better. Where the chunk holds nothing new, {skip}.
Write calls and nothing else."""

_CLAUSES = """\
Call the tools to change the memory; several calls may follow each other. Every entry is one short clause, and its first
two words are its key: the key of "Velmor lives in Castin" is "Velmor lives".
- Insert a clause for each new fact of the chunk.
- Update a fact that has changed. Write the new clause, with what was true before at its end: "Velmor lives in Roka
  before Castin". It takes the place of the newest entry with its key.
- Delete, by its key, what the chunk asks to forget.
- Do not store what is stored already, small talk or rumours. Where the chunk holds nothing new, skip.
Write calls and nothing else."""


def instructions_for(schema: Schema) -> str:
    """A system message for any model that gets descriptions of the schema's tools."""
    if schema.is_keyed:
        return f"{_TASK}\n\n{_CLAUSES}"
    kinds = {CORE: schema.core, **schema.kinds} if schema.core else schema.kinds
    listed = "\n".join(f"- {name}{schema.suffix}: {description}" for name, description in kinds.items())
    entries = _ENTRIES.format(skip="skip" if schema.has_skip else "call nothing")
    return f"{_TASK}\n\nThe memory has these parts:\n{listed}\n\n{entries}"
