"""What people say of episodes: grades and preferences, a line of JSON each, added to the reward of episodes alike.

    {"task": "t7", "answer": "Castin", "grade": 1}                  from -1 (bad) to 1 (good)
    {"task": "t7", "chosen": "Castin", "rejected": "Orlin"}         as 1 and -1

An answer is a text, which stands for all episodes of the task with that answer, case and punctuation aside; or an
object, as agentgrpo view writes it, {"answer", "response", ...}: with a response it stands for episodes that say the
very same from beginning to end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Episode
from agentgrpo.judges.answers import normalise
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.records import Node, read_rows

TERM = "human_feedback"
_GRADED, _PREFERRED = frozenset({"answer", "grade"}), frozenset({"chosen", "rejected"})


@dataclass(frozen=True, slots=True)
class Which:
    """Which episodes of a task are meant: those with this answer, as `normalise` has it, or with this response."""

    task: str
    kind: str
    text: str

    @classmethod
    def of(cls, task: str, *, answer: str | None, response: str) -> tuple[Which, ...]:
        """All that an episode is met by."""
        by_answer = (cls(task, "answer", normalise(answer)),) if answer and normalise(answer) else ()
        return (cls(task, "response", response), *by_answer)


@dataclass(frozen=True, slots=True)
class Statement:
    """One line. `lower`: of a preference, the other episode."""

    which: Which
    grade: float
    lower: Which | None = None


def read_feedback(path: Path) -> list[Statement]:
    """Raises DataError for lines that are none, all of them told."""
    malformed = Malformed()
    found = [*malformed.spare(_statement, read_rows(path, "feedback", malformed))]
    malformed.refuse()
    return found


def _statement(row: Node) -> Statement:
    task, keys = row.required("task"), set(row.object())
    if keys >= _PREFERRED and not _GRADED & keys:
        chosen, rejected = (_which(row, task, key) for key in ("chosen", "rejected"))
        if chosen == rejected:
            row.refuse("'chosen' and 'rejected' are the same; a preference is between two")
        return Statement(chosen, 1.0, rejected)
    if not (keys >= _GRADED and not _PREFERRED & keys):
        row.refuse(f"a line has task, answer and grade, or task, chosen and rejected; this one has {', '.join(keys)}")
    grade = row.object()["grade"]
    if isinstance(grade, bool) or not isinstance(grade, int | float) or not -1 <= grade <= 1:
        row.refuse(f"'grade' is {grade!r}; a number from -1 (bad) to 1 (good) is allowed")
    return Statement(_which(row, task, "answer"), float(grade))


def _which(row: Node, task: str, key: str) -> Which:
    given: Any = row.object()[key]
    said: Mapping[str, Any] = {"answer": given} if isinstance(given, str) else given
    if isinstance(said, Mapping) and isinstance(response := said.get("response"), str) and response:
        return Which(task, "response", response)
    answer = said.get("answer") if isinstance(said, Mapping) else None
    if not isinstance(answer, str) or not normalise(answer):
        row.refuse(f"'{key}' is {str(given)[:60]!r}; an answer is needed, or an object with an answer or a response")
    return Which(task, "answer", normalise(answer))


class Feedback:
    """A file of statements. Where several speak of an episode their mean counts; others get nothing."""

    def __init__(self, *, file: Path, weight: float = 1.0) -> None:
        """weight: of a grade of 1. Raises ConfigError and DataError."""
        statements = read_feedback(file)
        if not statements:
            raise DataError(f"reward.feedback.file={file} has no lines; write one with task, answer and grade")
        if not abs(weight) < float("inf"):
            raise ConfigError(f"reward.feedback.weight={weight}; a finite number is allowed")
        self._weight = weight
        self._grades: dict[Which, list[float]] = defaultdict(list)
        for which, grade in graded(statements):
            self._grades[which].append(grade)

    def of(self, episode: Episode) -> float:
        """What is added to its reward."""
        response = "".join(s.text for branch in episode.branches for s in branch.segments if s.sampled)
        met = Which.of(episode.task.id, answer=episode.answer, response=response)
        grades = [grade for which in met for grade in self._grades.get(which, ())]
        return self._weight * fmean(grades) + 0.0 if grades else 0.0


def graded(statements: list[Statement]) -> Iterator[tuple[Which, float]]:
    """Each statement as grades."""
    for statement in statements:
        yield statement.which, statement.grade
        if statement.lower is not None:
            yield statement.lower, -statement.grade
