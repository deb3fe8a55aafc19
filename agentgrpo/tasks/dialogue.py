"""The content of a memory task: chunks, read one at a time, and questions, asked after the last chunk.

It is stored in Task.metadata as JSON values:

    {"chunks": ["...", ...], "questions": [{"question": "...", "answers": ["..."], ...}, ...], "facts": [[...], ...]?}

`facts[t]`, which only some data sets know, are the clauses that chunk t asks to write, change or forget: objects {"op":
"insert" | "add" | "update" | "delete", "key": "...", "text": "..."}. Task.messages is one user message, the first
chunk; Task.references holds the first answer of every question; Episode.answer is a JSON list, one text for each
question (`join`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Message, Task

CHUNKS, QUESTIONS, FACTS = "chunks", "questions", "facts"
"""Keys of a task's metadata."""
ADD = "add"
"""`op` of a fact whose key may have several facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    answers: tuple[str, ...]
    """Acceptable answers; at least one."""
    kind: str = ""
    """E.g. current, history, forgotten; metrics are reported for each kind."""
    metric: str = ""
    """Name of the judge that grades it if several are routed (judges.composed); "" = the task's data source."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice question."""

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"question": self.text, "answers": list(self.answers)}
        extra = {"kind": self.kind, "metric": self.metric, "options": list(self.options)}
        return row | {key: value for key, value in extra.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A change that a chunk asks a memory to make."""

    op: str
    """insert | add | update | delete."""
    key: str
    """The subject of the clause. Facts that hold at the same time have different keys, except those of `add`."""
    text: str
    """The clause; "" for a delete."""


def chunks_of(task: Task) -> tuple[str, ...]:
    """Raises DataError for a task that has none."""
    chunks = task.metadata.get(CHUNKS)
    if not isinstance(chunks, list | tuple) or not chunks or not all(isinstance(c, str) and c.strip() for c in chunks):
        raise DataError(
            f"task {task.id} has no chunks; environment=memory needs metadata.{CHUNKS}, a list of texts: use a task "
            "set of conversations or documents, such as task=diary"
        )
    return tuple(chunks)


def questions_of(task: Task) -> tuple[Question, ...]:
    """Raises DataError for a task that has none."""
    rows = task.metadata.get(QUESTIONS)
    if not isinstance(rows, list | tuple) or not rows:
        raise DataError(f"task {task.id} has no questions; metadata.{QUESTIONS} must be a list of at least one")
    return tuple(_question(task, row) for row in rows)


def facts_of(task: Task) -> tuple[tuple[Fact, ...], ...] | None:
    """The facts of each chunk; None if the data set does not know them."""
    rows = task.metadata.get(FACTS)
    return None if rows is None else tuple(tuple(Fact(**fact) for fact in chunk) for chunk in rows)


def memory_task(
    task_id: str,
    *,
    chunks: Sequence[str],
    questions: Sequence[Question],
    data_source: str,
    facts: Sequence[Sequence[Fact]] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Task:
    """Build the Task that the functions above read. `metadata`: further fields, such as kind."""
    own = {FACTS: [[{"op": f.op, "key": f.key, "text": f.text} for f in chunk] for chunk in facts]} if facts else {}
    return Task(
        id=task_id,
        messages=(Message(role="user", content=chunks[0]),),
        references=tuple(q.answers[0] for q in questions),
        metadata={
            **(metadata or {}),
            CHUNKS: list(chunks),
            QUESTIONS: [q.to_json() for q in questions],
            **own,
        },
        data_source=data_source,
    )


def join(answers: Sequence[str]) -> str:
    """Write Episode.answer: one text for each question, in order; "" if the reader found nothing."""
    return json.dumps(list(answers), ensure_ascii=False)


def split(answer: str, count: int) -> list[str]:
    """Undo `join`. A text that is not a list of `count` texts, such as a judge's canary, answers every question."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == count and all(isinstance(a, str) for a in found):
        return found
    return [answer] * count


def _question(task: Task, row: Any) -> Question:
    if not isinstance(row, Mapping) or not isinstance(row.get("question"), str) or not row["question"].strip():
        raise DataError(f"task {task.id}: question {row!r}; an object with a text 'question' is needed")
    answers = row.get("answers")
    if not isinstance(answers, list | tuple) or not answers or not all(isinstance(a, str) and a for a in answers):
        raise DataError(
            f"task {task.id}: the answers of {row['question']!r} are {answers!r}; a list of texts is needed"
        )
    return Question(
        text=row["question"],
        answers=tuple(answers),
        kind=str(row.get("kind", "")),
        metric=str(row.get("metric", "")),
        options=tuple(map(str, row.get("options", ()))),
    )
