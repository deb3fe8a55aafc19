"""The common form into which every format is read, before it is cut into chunks and tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentgrpo.tasks.dialogue import Fact, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentUnit:
    """A piece of text that is kept in one chunk if it fits: a message, a paragraph, an event, an example."""

    text: str
    questions: tuple[Question, ...] = ()
    """Questions that this unit alone answers."""
    label: str = ""
    """The label of an example in a label set."""
    is_needed: bool = False
    """The questions of its document cannot be answered without this unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document, the whole of which goes to one split."""

    id: str
    where: str
    """File and position, for errors."""
    units: tuple[DocumentUnit, ...]
    source: str
    """The tasks' data_source."""
    questions: tuple[Question, ...] = ()
    """Questions about the whole document."""
    split: str | None = None
    """The split that its file names; None = assigned by hash."""
    keys: tuple[str, ...] = ()
    """Documents that share a key go to the same split."""
    is_chunked: bool = False
    """Every unit is one chunk, unchanged."""
    is_chat: bool = False
    """The units are messages."""
    facts: tuple[tuple[Fact, ...], ...] | None = None
    """The facts of each chunk."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource:
    """One file and how to read it."""

    path: Path
    split: str | None
    """The split of the whole file; None = not given."""
    contexts: Path | None
    metric: str | None
    """The metric of questions without one; None = the format's default, "" = no metric."""
    unanswerable: str | None
    label_level: Literal["fine", "coarse"]
    left_out: Counter[str]
    """Reason -> number left out; readers add to it."""

    def metric_or(self, own: str) -> str:
        return own if self.metric is None else self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How documents become chunks and tasks. A count of None means no limit."""

    chunk_words: int
    chunk_messages: int
    max_chunks: int | None
    leaves_out: bool
    """Leave out documents that are too long for a task; otherwise they raise DataError."""
    questions_per_task: int | None
    names_labels: bool
    label_metric: str
    seed: int
    left_out: Counter[str]
