"""Merges the grades of several judges."""

from __future__ import annotations

from collections.abc import Mapping

from agentgrpo.judges.base import Grade


def merged_grade(score: float, grades: Mapping[str, Grade]) -> Grade:
    """Return the grade `score` of several judges together. Its parts are the score of each judge by the judge's name,
    and the parts of each judge's grade, called NAME/PART if the name PART is taken."""
    parts = {name: grade.score for name, grade in grades.items()}
    for name, grade in grades.items():
        for part, value in grade.parts.items():
            parts[f"{name}/{part}" if part in parts else part] = value
    said = (f"{name} {grade.score:g}{grade.reason and f': {grade.reason}'}" for name, grade in grades.items())
    return Grade(score=score, reason=", ".join(said), parts=parts)
