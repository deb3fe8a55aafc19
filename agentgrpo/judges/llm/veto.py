"""Answers that no judge model may reward, because the references say so."""

from __future__ import annotations

from agentgrpo.judges.answers import contains, f1
from agentgrpo.judges.normalise import words
from agentgrpo.types import Task

SHORT = 8
"""Words of a reference that states a fact. A longer one can be said rightly in words that it does not share."""


def is_vetoed(task: Task, answer: str, min_overlap: float) -> bool:
    """Whether every reference is short and the answer neither holds one word for word in at most SHORT further words,
    nor shares words with one to a token F1 above 0 of at least min_overlap.

    This bounds what talking to the judge can bring: an answer that argues instead of answering shares too little. Its
    price: a right answer in other words ("NYC" for "New York City") is wrong, so give such references, or switch it off
    where answers are free text.
    """
    references = [found for reference in task.references if (found := words(reference))]
    if not references or any(len(reference) > SHORT for reference in references):
        return False
    given = words(answer)
    return not any(_agrees(given, reference, min_overlap) for reference in references)


def _agrees(given: list[str], reference: list[str], min_overlap: float) -> bool:
    if len(given) <= len(reference) + SHORT and contains(given, reference):
        return True
    return f1(given, reference) >= max(min_overlap, 1e-9)
