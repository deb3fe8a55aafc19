"""The data: questions that are in two splits, are repeated within one, or contain their own answer."""

from __future__ import annotations

import json
from itertools import combinations

from agentgrpo.core.types import Task
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.dialogue import CHUNKS, QUESTIONS
from agentgrpo.tasks.questions.formats import QuestionEntry, same_answers, same_question, words_of

EXAMPLES = 3
MANY = 0.5
"""A note is given if more than this share of a split's questions contain their answer; some do by design, such as
multiple choice."""


async def look_at_data(case: Case, found: CheckNotes) -> None:
    """Compare all splits by their words, not letter by letter."""
    dataset = case.built.dataset
    asked: dict[str, dict[str, frozenset[str]]] = {name: {} for name in SPLITS}
    for name in SPLITS:
        again, otherwise, given = 0, 0, 0
        for task in dataset.split(name):
            same, answers = _identity(task), same_answers(task.references)
            if same in asked[name]:
                again += 1
                otherwise += bool(answers and asked[name][same] and not answers & asked[name][same])
            asked[name][same] = asked[name].get(same, frozenset()) | answers
            given += _gives_itself_away(task)
        count = len(dataset.split(name))
        found.facts[name] = {"tasks": count, "asked again": again}
        _within(name, count, again, otherwise, given, found)
    for one, other in combinations(SPLITS, 2):
        shared = sorted(asked[one].keys() & asked[other].keys())
        if shared:
            examples = "; ".join(repr(text[:80]) for text in shared[:EXAMPLES])
            found.problem(
                f"{len(shared)} questions of {other} are in {one} too: {examples}",
                why="what is learned by heart counts as learned: the figures of that split are worth nothing",
                key="task",
            )


def _identity(task: Task) -> str:
    """Equal for two tasks that ask the same question about the same input."""
    entry = QuestionEntry(where=task.id, question=task.question, answers=task.references, metadata=task.metadata)
    read = {key: task.metadata[key] for key in (CHUNKS, QUESTIONS) if key in task.metadata}
    return same_question(entry) + (f"\n{json.dumps(read, sort_keys=True, default=str)}" if read else "")


def _gives_itself_away(task: Task) -> bool:
    if CHUNKS in task.metadata:
        return False  # such tasks ask about the text that the policy reads
    words = words_of(task.question)
    said = f" {' '.join(words)} "
    return any(r and f" {' '.join(words_of(r))} " in said for r in task.references if words_of(r))


def _within(name: str, count: int, again: int, otherwise: int, given: int, found: CheckNotes) -> None:
    if otherwise:
        found.note(
            f"{otherwise} questions of {name} are asked again with other answers",
            why="one of the two is graded as wrong whatever the policy says",
            key="task",
        )
    if again > 0.1 * count:
        found.note(
            f"{again} of {count} questions of {name} are asked again",
            why="some tasks weigh more than others",
            key="task",
        )
    if count and given > MANY * count:
        found.note(
            f"{given} of {count} questions of {name} hold their own answer",
            why="they can be answered without what is to be learned",
            key="task",
        )
