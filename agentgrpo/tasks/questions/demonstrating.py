"""Demonstrations of a user's own questions: a script searches the user's own documents and reads the answer there.

The script knows the acceptable answers and recognises them in a passage; the policy that imitates it has to find them.
Only questions whose answer a search finds are demonstrated, so the demonstrations are correct and incomplete.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgrpo.core.chance import uniform
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import Language
from agentgrpo.tasks.questions.formats import words_of
from agentgrpo.tasks.scripts import Script, answer, call, turn_after

LANGUAGE = Language(answer="Final Answer: ")
_NUM_RAREST = 4
"""Number of words in the second query."""


class QuestionDemonstrator:
    """Searches for the question as it is asked, then for its rarest words; answers once a result holds an acceptable
    answer, and with "" if none does (tasks.base.ToolDemonstrator)."""

    def __init__(self, task: Task, frequency: Mapping[str, int]) -> None:
        """frequency: word -> number of passages with this word."""
        self._task, self._frequency = task, frequency

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return turn_after(answered, self._script())

    def _script(self) -> Script:
        for query in dict.fromkeys((self._task.question, self._rarest())):
            text = f" {' '.join(words_of((yield call('search', query=query))))} "
            for reference in self._task.references:
                if f" {' '.join(words_of(reference))} " in text:
                    return answer(reference)
        return answer("")

    def _rarest(self) -> str:
        words = dict.fromkeys(words_of(self._task.question))
        rarest = sorted(words, key=lambda word: self._frequency.get(word) or math.inf)[:_NUM_RAREST]
        return " ".join(word for word in words if word in rarest)


class ReadingWorld:
    """Training questions to demonstrate, over the user's documents (tasks.base.DemonstrationWorld)."""

    phase = 0

    def __init__(self, tasks: Sequence[Task], corpora: Mapping[str, Sequence[Passage]], num_tasks: int) -> None:
        """num_tasks: maximum number of tasks, drawn by id from those with answers."""
        answerable = [task for task in tasks if task.references]
        drawn = sorted(answerable, key=lambda task: uniform("demonstrated questions", task.id))
        self.tasks: Sequence[Task] = tuple(drawn[:num_tasks])
        self._corpora = corpora
        passages = (passage for corpus in corpora.values() for passage in corpus)
        self._frequency = Counter(w for p in passages for w in {*words_of(f"{p.title} {p.text}")})

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def demonstrator(self, task: Task) -> QuestionDemonstrator:
        return QuestionDemonstrator(task, self._frequency)


SOURCE = Path(__file__).read_text("utf-8")
"""The code of the demonstrations in a ReadingWorld, for fingerprints."""
