"""What every format is read into, before it is cut into chunks and tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentgrpo.tasks.dialogue import Fact, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentUnit:
    """A stretch of text that stays together where it fits: a message, a paragraph, an event, an example."""

    text: str
    questions: tuple[Question, ...] = ()
    """Those that it answers by itself."""
    label: str = ""
    """Of an example to learn labels from."""
    is_needed: bool = False
    """The questions of its document cannot be answered without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What goes to one split as a whole."""

    id: str
    where: str
    """File and position, for errors."""
    units: tuple[DocumentUnit, ...]
    source: str
    """The tasks' data_source."""
    questions: tuple[Question, ...] = ()
    """About all of it."""
    split: str | None = None
    """As its file says; None = by hash."""
    keys: tuple[str, ...] = ()
    """Documents that share one go to the same split."""
    is_chunked: bool = False
    """Every unit is a chunk as it is."""
    is_chat: bool = False
    """The units are messages."""
    facts: tuple[tuple[Fact, ...], ...] | None = None
    """Of each chunk."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource:
    """One file and how to read it."""

    path: Path
    split: str | None
    """Of the whole file; None = not said."""
    contexts: Path | None
    metric: str | None
    """Of questions that name none; None = the format's own, "" = none."""
    unanswerable: str | None
    label_level: Literal["fine", "coarse"]
    left_out: Counter[str]
    """Reason -> how many were left out; readers add to it."""

    def metric_or(self, own: str) -> str:
        return own if self.metric is None else self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How documents become chunks and tasks. Of a count None = without limit."""

    chunk_words: int
    chunk_messages: int
    max_chunks: int | None
    leaves_out: bool
    """What is too long for a task is left out; else it is a DataError."""
    questions_per_task: int | None
    names_labels: bool
    label_metric: str
    seed: int
    left_out: Counter[str]
