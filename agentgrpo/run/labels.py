"""A judge against answers that people have labelled: `agentgrpo check judge --labels FILE`.

accuracy     share of the answers that judge and label put on the same side of one half
agreement    Cohen's kappa of judge and label: 1 = always, 0 = as often as by chance
length       how much more the longer half of the answers gets than the shorter half, beyond their labels
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from agentgrpo.core.errors import DataError, JudgeError
from agentgrpo.core.types import Message, Task
from agentgrpo.judges.answers import words
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.judges.llm.verdict import BAD_VERDICT
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.records import Node, read_rows

LEAST_ACCURACY, MOST_LENGTH_BIAS = 0.8, 0.1
LEAST_LABELS = 20
"""Least number of labels for a bias to be a finding."""
REFUSALS = (BAD_VERDICT, "no_reference")
"""Kinds of JudgeError for a judge that replied without a grade."""

Pair = tuple[Task, str, str]
"""A task, a right answer and a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """People's grade of an answer, from 0 to 1."""

    task: Task
    answer: str
    grade: float


def read_labels(path: Path) -> list[Label]:
    """Read lines {"question", "answer", "label": a number from 0 to 1, "references"?: [texts]}. Raises DataError."""
    malformed = Malformed()
    labels = [*malformed.spare(_label, read_rows(path, "--labels", malformed))]
    malformed.refuse()
    if not labels:
        raise DataError(f"--labels: '{path}' has no lines; write one object with question, answer and label per line")
    return labels


def _label(row: Node) -> Label:
    grade, references = row.object().get("label"), row.object().get("references") or []
    if not isinstance(grade, int | float) or not 0 <= grade <= 1:
        row.refuse(f"'label' is {grade!r}; it must be a number from 0 (wrong) to 1 (right)")
    if not isinstance(references, list) or not all(isinstance(text, str) for text in references):
        row.refuse(f"'references' is {str(references)[:60]!r}; it must be a list of texts, or left out")
    question = Message(role="user", content=row.required("question"))
    task = Task(id=row.at, messages=(question,), references=tuple(references))
    return Label(task=task, answer=row.required("answer"), grade=float(grade))


def pairs_of(labels: Sequence[Label]) -> list[Pair]:
    """Return, for each question that has both, its first right and its first wrong answer."""
    right: dict[str, Label] = {}
    wrong: dict[str, Label] = {}
    for label in labels:
        (right if label.grade >= 0.5 else wrong).setdefault(label.task.question, label)
    return [(label.task, label.answer, wrong[of].answer) for of, label in right.items() if of in wrong]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The judge compared with the labels, over the answers that it graded. None: nothing to compare."""

    answers: int
    refused: int
    accuracy: float | None
    commonest: float | None
    """The accuracy of always giving the most frequent label."""
    agreement: float | None
    length_bias: float | None

    def lines(self) -> list[str]:
        shown = {name: "none" if value is None else f"{value:.2f}" for name, value in asdict(self).items()}
        bias = "none" if self.length_bias is None else f"{self.length_bias:+.2f}"
        return [
            f"labels: accuracy {shown['accuracy']} over {self.answers} answers, and {self.refused} refused",
            f"labels: accuracy {shown['commonest']} of always saying the commonest label",
            f"labels: agreement {shown['agreement']} (Cohen's kappa); being long is worth {bias}",
        ]

    def findings(self) -> list[str]:
        found = []
        if self.refused > self.answers:
            found.append(f"labels: it gives no grade to {self.refused} of {self.refused + self.answers} answers")
        if self.accuracy is not None and self.accuracy < LEAST_ACCURACY:
            found.append(f"labels: it is right about {self.accuracy:.2f} of the answers; {LEAST_ACCURACY} is needed")
        if self.agreement is not None and self.agreement <= 0:
            found.append("labels: it agrees with them no more than by chance")
        bias = self.length_bias
        if bias is not None and abs(bias) > MOST_LENGTH_BIAS and self.answers >= LEAST_LABELS:
            found.append(f"labels: it favours {'long' if bias > 0 else 'short'} answers by {abs(bias):.2f}")
        return found

    def json(self) -> Mapping[str, float | None]:
        return asdict(self)


async def calibrate(judge: AnswerJudge, labels: Sequence[Label]) -> Calibration:
    """Grade the labelled answers and compare. Raises JudgeError if the judge cannot be asked."""
    grades = await asyncio.gather(*(_graded(judge, label) for label in labels))
    return compare([(label, grade) for label, grade in zip(labels, grades, strict=True) if grade is not None], labels)


async def _graded(judge: AnswerJudge, label: Label) -> float | None:
    try:
        return (await judge.grade(label.task, [label.answer]))[0].score
    except JudgeError as e:
        if e.kind not in REFUSALS:
            raise
        return None


def compare(graded: Sequence[tuple[Label, float]], labels: Sequence[Label]) -> Calibration:
    """Compare the judge's grades with their labels."""
    sides = [(label.grade >= 0.5, grade >= 0.5) for label, grade in graded]
    accuracy = fmean(label == grade for label, grade in sides) if sides else None
    commonest = agreement = None
    if accuracy is not None:
        yes, said = fmean(label for label, _ in sides), fmean(grade for _, grade in sides)
        commonest = max(yes, 1 - yes)
        chance = yes * said + (1 - yes) * (1 - said)
        agreement = (accuracy - chance) / (1 - chance) if chance < 1 else None
    return Calibration(
        answers=len(graded),
        refused=len(labels) - len(graded),
        accuracy=accuracy,
        commonest=commonest,
        agreement=agreement,
        length_bias=_length_bias(graded),
    )


def _length_bias(graded: Sequence[tuple[Label, float]]) -> float | None:
    lengths = sorted(len(words(label.answer)) for label, _ in graded)
    middle = lengths[len(lengths) // 2] if lengths else 0
    over: dict[bool, list[float]] = {True: [], False: []}
    for label, grade in graded:
        over[len(words(label.answer)) >= middle].append(grade - label.grade)
    return fmean(over[True]) - fmean(over[False]) if over[True] and over[False] else None
