"""A rule that knows what each chunk says (dialogue.facts_of), for data sets that know it."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.dialogue import Fact, chunks_of, facts_of
from agentgrpo.errors import DataError
from agentgrpo.memory.base import Change, ChunkVerdict
from agentgrpo.memory.schema import DELETE, UPDATE, key_of
from agentgrpo.memory.validity.stored import Stored
from agentgrpo.types import Task

_BEFORE = " before "


class AssertedValidity:
    """Every change is judged, `wanted` are the facts of the chunk.

    insert   valid if its text is a fact that this chunk asserts, and nothing of that key (the first two words) is
             stored yet
    update   valid if its text is such a fact and has the key of what it replaces
    delete   valid if the chunk asks to forget the key

    A text is a fact's if it is the fact's own, or that up to " before ", or that and " before " with a word of the
    entry that is replaced: what held earlier no chunk says, so a memory may have missed it. A fact can be written once.
    """

    async def judge(self, task: Task, chunk: int, changes: Sequence[Change]) -> ChunkVerdict:
        """Raises DataError for a task that knows no facts."""
        facts = facts_of(task)
        if facts is None or len(facts) != len(chunks_of(task)):
            raise DataError(
                f"task {task.id} does not say what each of its chunks asserts (metadata.facts, a list for each chunk), "
                "which agent.validity=asserted needs; use agent.validity=llm or none"
            )
        stored = Stored(change for change in changes if change.chunk < chunk)
        unwritten = [fact for fact in facts[chunk] if fact.op != DELETE]
        forgotten = {_plain(fact.key) for fact in facts[chunk] if fact.op == DELETE}
        own = [change for change in changes if change.chunk == chunk]
        valid = 0
        for change in own:
            valid += _is_valid(change, stored, unwritten, forgotten)
            stored.follow(change)
        return ChunkVerdict(judged=len(own), valid=valid, wanted=len(facts[chunk]))

    async def close(self) -> None:
        """Nothing is open."""


def _is_valid(change: Change, stored: Stored, unwritten: list[Fact], forgotten: set[str]) -> bool:
    """A fact that is written leaves `unwritten`."""
    if change.after is None:
        return change.before is not None and key_of(_plain(change.before.text)) in forgotten
    text, replaced = _plain(change.after.text), _plain(change.before.text) if change.before is not None else None
    if replaced is None and stored.holds(key_of(text)):
        return False
    if replaced is not None and change.op == UPDATE and key_of(text) != key_of(replaced):
        return False
    fact = next((f for f in unwritten if _says(text, _plain(f.text), replaced)), None)
    if fact is not None:
        unwritten.remove(fact)
    return fact is not None


def _says(text: str, fact: str, replaced: str | None) -> bool:
    clause = fact.partition(_BEFORE)[0]
    said, before, earlier = text.partition(_BEFORE)
    return text == fact or (said == clause and (not before or (replaced is not None and earlier in replaced.split())))


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
