"""The interfaces between the parts of a memory.

sampled call --Memory.apply--> Applied, Change   Memory.passages --Reader--> answers   [Change] --EntryJudge--> verdict

Documents are Passages everywhere, in the order of writing, the newest last. Their title is the kind of an entry
("semantic", ...), or "" for a raw chunk. So the same reader reads memories and raw chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgrpo.core.types import Outcome, Passage, Task
from agentgrpo.tasks.dialogue import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """One note. Notes of one kind have different texts."""

    id: str
    kind: str
    text: str
    chunk: int
    """The chunk in which it was last written, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The effect of one call. An insert has no `before`, a delete no `after`, an update both; core writes, replaces or
    empties the core paragraph. Undoing the changes of an episode backwards leads to an empty memory."""

    op: str
    """insert | update | delete | core."""
    chunk: int
    before: MemoryEntry | None
    after: MemoryEntry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result of one call. SUCCESS without a change is an explicit skip. INVALID_ARGS: wrong or missing arguments,
    an unknown id, an exact duplicate, a text over its limit of tokens. TOOL_NOT_FOUND: no such operation.
    A call that fails changes nothing."""

    outcome: Outcome
    detail: str = ""
    """Why it failed: one line."""
    change: Change | None = None


class MemorySearch(Protocol):
    """The search with which a reader finds documents."""

    identity: str
    """Everything that determines its results; part of the key of cached answers."""

    def over(self, documents: Sequence[Passage]) -> Index: ...


class Index(Protocol):
    def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Return at most top_k documents, best first, the newest first among equals. Documents that share nothing with
        the query are left out."""
        ...


class Reader(Protocol):
    """Answers questions from documents. It is frozen: it never sees the policy, and nothing here trains it."""

    identity: str

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        """Return one text per question, in order, from the documents alone; "" for every question if there is no
        document, so that an empty memory earns nothing. Raises JudgeError."""
        ...

    def counts(self) -> dict[str, float]:
        """Totals since it was built, such as calls, cached, cost; empty if it asks no model."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGrade:
    """The grade of the changes made for one chunk."""

    verdicts: tuple[bool | None, ...]
    """Whether each change of the chunk is right, in order; None = not judged."""
    wanted: int | None = None
    """Number of changes that the chunk asks for; None = unknown."""

    @property
    def judged(self) -> int:
        return sum(verdict is not None for verdict in self.verdicts)

    @property
    def valid(self) -> int:
        return sum(verdict is True for verdict in self.verdicts)


class EntryJudge(Protocol):
    async def judge(self, task: Task, chunk: int, changes: Sequence[Change]) -> ChunkGrade:
        """Give each change of `chunk` a verdict. `changes`: all changes of the episode so far, in order
        (Memory.history); the earlier ones tell what was stored before. Raises JudgeError."""
        ...

    async def close(self) -> None: ...
