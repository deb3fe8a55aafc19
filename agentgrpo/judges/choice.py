"""Multiple choice."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from string import ascii_lowercase

from agentgrpo.errors import DataError, JudgeError
from agentgrpo.judges.base import Verdict
from agentgrpo.judges.normalise import normalise
from agentgrpo.types import Task

OPTIONS = "options"
"""Key of a task's metadata: the texts to choose from, the first one being A; with or without their letters."""
_LEAD = re.compile(
    r"(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*(?:option\s+)?",
    re.IGNORECASE,
)
_LETTER = re.compile(r"\(?([a-z])(?:[).:]+\s*|\s+|$)(.*)", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"\(?([a-z])[).:]+\s*(.+)", re.IGNORECASE | re.DOTALL)


class Choice:
    """1 where the answer is the right option, by its letter ("C", "(c)", "The answer is C."), by its text, or by both
    ("C) a boat"); else 0. The letter must be the answer: one that merely occurs in it ("A friend of C", "B or C") names
    no option. References are letters or texts; a letter that the options have is read as one, not as a text. Without
    metadata.options answers and references are compared as they are.

    Raises JudgeError where no reference is one of the options.
    """

    def refuse_task(self, task: Task) -> None:
        """Raise DataError for a question that no answer to is right."""
        try:
            _right(task, _options(task))
        except JudgeError as e:
            raise DataError(str(e)) from e

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        options = _options(task)
        right = _right(task, options)
        return [Verdict(score=float(not right.isdisjoint(_named(answer, options)))) for answer in answers]


def _options(task: Task) -> list[str]:
    return [_unlabelled(i, str(text)) for i, text in enumerate(task.metadata.get(OPTIONS) or ())]


def _right(task: Task, options: Sequence[str]) -> set[str]:
    """Letters of the right ones."""
    right = {name for reference in task.references for name in _named(reference, options)}
    if not right:
        raise JudgeError(
            f"task {task.id}: references {list(task.references)} name none of the options {list(options)}; give the "
            "letter or the text of one",
            kind="no_reference",
        )
    return right


def _named(text: str, options: Sequence[str]) -> set[str]:
    """Letters of the options that `text` is; where there are none to choose from, the text itself, normalised."""
    plain = unicodedata.normalize("NFKC", text).strip(" \t\r\n*`\"'")
    lead = _LEAD.match(plain)
    candidates = [plain, plain[lead.end() :]] if lead else [plain]
    if not options:
        return {name for name in map(normalise, candidates) if name}
    return next((found for candidate in candidates if (found := _chosen(candidate, options))), set())


def _chosen(text: str, options: Sequence[str]) -> set[str]:
    by_letter = dict(zip(ascii_lowercase, options, strict=False))
    written = _LETTER.fullmatch(text)
    if written and (letter := written[1].lower()) in by_letter:
        if normalise(written[2]) in ("", normalise(by_letter[letter])):
            return {letter}
        if _LABEL.fullmatch(text):  # a letter and another one's text, or a text that begins like "A. Smith"
            return {other for other, option in by_letter.items() if text.casefold() == option.casefold()}
    wanted = normalise(text)
    return {letter for letter, option in by_letter.items() if wanted and normalise(option) == wanted}


def _unlabelled(number: int, option: str) -> str:
    """Without its letter, where it has its own: "(b) a boat", the second one, is "a boat"."""
    label = _LABEL.fullmatch(option.strip())
    return label[2] if label and ascii_lowercase.find(label[1].lower()) == number else option
