"""How much of what a text must hold it holds."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.judges.answers import comparable, contains
from agentgrpo.judges.base import Verdict
from agentgrpo.judges.normalise import words
from agentgrpo.types import Task


class Keywords:
    """The share of the references that the answer holds, each as whole words side by side; for summaries, where every
    reference is a keyword. A longer answer is never worse: bound its length elsewhere."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        wanted = comparable(task)
        return [
            Verdict(score=sum(contains(given, keyword) for keyword in wanted) / len(wanted))
            for given in map(words, answers)
        ]
