"""Judges that compare an answer with the task's references, word by word; the best reference counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agentgrpo.errors import ConfigError, JudgeError
from agentgrpo.judges.base import Verdict
from agentgrpo.judges.normalise import words
from agentgrpo.types import Task


def f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """2·overlap / (words + words), words counted as often as they occur."""
    overlap = (Counter(answer) & Counter(reference)).total()
    return 2 * overlap / (len(answer) + len(reference))


def contains(answer: Sequence[str], reference: Sequence[str]) -> bool:
    """Whether the reference's words stand in the answer side by side: whole words, so "art" is not in "party"."""
    n = len(reference)
    return any(list(answer[i : i + n]) == list(reference) for i in range(len(answer) - n + 1))


def comparable(task: Task) -> list[list[str]]:
    """The task's references as words. Raises JudgeError where none has any."""
    references = [found for r in task.references if (found := words(r))]
    if not references:
        raise JudgeError(
            f"task {task.id}: references {list(task.references)} hold nothing to compare an answer with; "
            "give at least one with a letter or digit, or choose a judge that needs none",
            kind="no_reference",
        )
    return references


def _grade(task: Task, answers: Sequence[str], score: Callable[[list[str], list[str]], float]) -> list[Verdict]:
    references = comparable(task)
    # no score is above 0 for an answer without words, since every reference has some
    return [Verdict(score=max(score(given, r) for r in references)) for given in map(words, answers)]


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} {value}: a grade lies between 0 and 1; choose one of these")
    return float(value)


class ExactMatch:
    """1 for the same words in the same order, else 0."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return _grade(task, answers, lambda a, r: float(a == r))


class TokenF1:
    """F1 of the words that answer and reference share (SQuAD)."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return _grade(task, answers, f1)


class Contains:
    """1 for an exact match, `contained` where the reference is a part of the answer, else 0.

    A policy can please it by listing candidates; prefer ExactMatch or GoldAgreement with short answers for training.
    """

    def __init__(self, *, contained: float = 0.7) -> None:
        self._contained = _share("contained", contained)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return _grade(task, answers, lambda a, r: 1.0 if a == r else self._contained * contains(a, r))


class GoldAgreement:
    """1 for an exact match, `contained` where the reference is a part of the answer, else `overlap`·F1."""

    def __init__(self, *, contained: float = 0.7, overlap: float = 0.6) -> None:
        self._contained = _share("contained", contained)
        self._overlap = _share("overlap", overlap)

    def _score(self, answer: list[str], reference: list[str]) -> float:
        if answer == reference:
            return 1.0
        return self._contained if contains(answer, reference) else self._overlap * f1(answer, reference)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return _grade(task, answers, self._score)
