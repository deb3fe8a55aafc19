"""Human feedback on episodes: grades and preferences, one JSON line each, added to the reward of matching episodes.

    {"task": "t7", "answer": "Castin", "grade": 1}                  from -1 (bad) to 1 (good)
    {"task": "t7", "chosen": "Castin", "rejected": "Orlin"}         as 1 and -1

An answer is a text, which matches all episodes of the task with that answer, case and punctuation aside; or an object,
as agentgrpo view writes it, {"answer", "response", ...}. With a response it matches only episodes whose sampled text is
exactly the same.
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
    """Selects episodes of a task: by their answer, normalised by `normalise`, or by their response."""

    task: str
    kind: str
    text: str

    @classmethod
    def of(cls, task: str, *, answer: str | None, response: str) -> tuple[Which, ...]:
        """All keys that match the episode with this answer and response."""
        by_answer = (cls(task, "answer", normalise(answer)),) if answer and normalise(answer) else ()
        return (cls(task, "response", response), *by_answer)


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of feedback. `lower`: the rejected episode of a preference."""

    which: Which
    grade: float
    lower: Which | None = None


def read_feedback(path: Path) -> list[Statement]:
    """The statements in a file. Raises DataError that lists all invalid lines."""
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
    """A file of statements. The mean counts if several match an episode; an episode without any gets 0."""

    def __init__(self, *, file: Path, weight: float = 1.0) -> None:
        """weight: the reward for a grade of 1. Raises ConfigError and DataError."""
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
        """The amount that is added to the episode's reward."""
        response = "".join(s.text for branch in episode.branches for s in branch.segments if s.sampled)
        met = Which.of(episode.task.id, answer=episode.answer, response=response)
        grades = [grade for which in met for grade in self._grades.get(which, ())]
        return self._weight * fmean(grades) + 0.0 if grades else 0.0


def graded(statements: list[Statement]) -> Iterator[tuple[Which, float]]:
    """The grades of each statement; a preference gives two."""
    for statement in statements:
        yield statement.which, statement.grade
        if statement.lower is not None:
            yield statement.lower, -statement.grade
