"""What a memory task holds: chunks to be read one at a time, and questions that are asked after the last one.

It lies in Task.metadata, as JSON values:

    {"chunks": ["...", ...], "questions": [{"question": "...", "answers": ["..."], ...}, ...], "facts": [[...], ...]?}

`facts[t]` are the clauses that chunk t asks to be written, changed or forgotten, of data sets that know them: objects
{"op": "insert" | "add" | "update" | "delete", "key": "...", "text": "..."}. Task.messages is one user message, the
first chunk; Task.references the first answer of every question; Episode.answer a JSON list, one text for each question
(`join`).
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
"""`op` of a fact that is one of several of its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    answers: tuple[str, ...]
    """Acceptable ones; at least one."""
    kind: str = ""
    """Such as current, history, forgotten: figures are shown by it."""
    metric: str = ""
    """Which judge grades it, where several are routed (judges.composed); "" = the task's data source."""
    options: tuple[str, ...] = ()
    """Of a multiple-choice question."""

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"question": self.text, "answers": list(self.answers)}
        extra = {"kind": self.kind, "metric": self.metric, "options": list(self.options)}
        return row | {key: value for key, value in extra.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What a chunk asks of a memory."""

    op: str
    """insert | add | update | delete."""
    key: str
    """What the clause is about; no two facts that hold at once have the same, but those of `add`."""
    text: str
    """The clause; "" of a delete."""


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
    """Of each chunk; None where the data set does not know them."""
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
    """The Task that the functions above read. `metadata`: further fields, such as kind."""
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
    """Episode.answer: one text for each question, in order; "" where the reader found nothing."""
    return json.dumps(list(answers), ensure_ascii=False)


def split(answer: str, count: int) -> list[str]:
    """What `join` joined. A text that is no list of `count` texts, such as a judge's canary, is everybody's answer."""
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
