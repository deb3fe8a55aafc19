"""What the parts of a memory are to each other.

sampled call --Memory.apply--> Applied, Change   Memory.passages --Reader--> answers   [Change] --EntryJudge--> verdict

Documents are Passages everywhere: title = the kind of an entry ("semantic", ...) or "" of a raw chunk, in the order in
which they were written, so that what is newer stands later. So the same reader reads memories and raw chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgrpo.core.types import Outcome, Passage, Task
from agentgrpo.tasks.dialogue import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """One note. No two of one kind have the same text."""

    id: str
    kind: str
    text: str
    chunk: int
    """The chunk in which it was last written, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one call did: insert (before is None), delete (after is None), update; core is either of the last two, of
    the core paragraph. Undone backwards, the changes of an
    episode lead back to an empty memory."""

    op: str
    """insert | update | delete | core."""
    chunk: int
    before: MemoryEntry | None
    after: MemoryEntry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came of one call. SUCCESS without a change is an explicit skip. INVALID_ARGS: wrong or missing arguments, an
    id that is not there, an exact duplicate, a text over its limit of tokens; TOOL_NOT_FOUND: no such operation.
    A call that fails changes nothing."""

    outcome: Outcome
    detail: str = ""
    """Why it failed: one line."""
    change: Change | None = None


class MemorySearch(Protocol):
    """How a reader finds its way in documents."""

    identity: str
    """All of it that decides what it finds: part of the key that answers are kept under."""

    def over(self, documents: Sequence[Passage]) -> Index: ...


class Index(Protocol):
    def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Best first, of equally good ones the newest; at most top_k; what shares nothing with the query is left
        out."""
        ...


class Reader(Protocol):
    """Answers questions from documents. It is frozen: it never sees the policy, and nothing here trains it."""

    identity: str

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        """One text per question, in order, from nothing but the documents; "" for all of them where there is no
        document, so that an empty memory earns nothing. Raises JudgeError."""
        ...

    def counts(self) -> dict[str, float]:
        """Totals since it was built, such as calls, cached, cost; empty where it asks nobody."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGrade:
    """How what was written of one chunk is to be seen."""

    verdicts: tuple[bool | None, ...]
    """Of each change of the chunk, in order, whether it is right; None = not judged."""
    wanted: int | None = None
    """How many changes were asked for; None = nobody knows."""

    @property
    def judged(self) -> int:
        return sum(verdict is not None for verdict in self.verdicts)

    @property
    def valid(self) -> int:
        return sum(verdict is True for verdict in self.verdicts)


class EntryJudge(Protocol):
    async def judge(self, task: Task, chunk: int, changes: Sequence[Change]) -> ChunkGrade:
        """`changes`: all of the episode so far, in order (Memory.history). Those of that chunk get a verdict each; the
        others say what was stored before it. Raises JudgeError."""
        ...

    async def close(self) -> None: ...
