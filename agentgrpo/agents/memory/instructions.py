"""What a policy is told that was not trained to keep a memory: what to store, how to update, when to skip."""

from __future__ import annotations

from agentgrpo.memory.schema import CORE, Schema

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
- The shorter the memory, the better. Where the chunk holds nothing new, skip.
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
    """A system message for any model that has the schema's tools described to it."""
    if schema.is_keyed:
        return f"{_TASK}\n\n{_CLAUSES}"
    kinds = {CORE: schema.core, **schema.kinds} if schema.core else schema.kinds
    listed = "\n".join(f"- {name}: {description}" for name, description in kinds.items())
    return f"{_TASK}\n\nThe memory has these parts:\n{listed}\n\n{_ENTRIES}"
