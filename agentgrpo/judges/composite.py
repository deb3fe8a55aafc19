"""Several judges as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentgrpo.errors import ConfigError
from agentgrpo.judges.base import AnswerJudge, Verdict, canaries_of, counts_of, grade_episodes
from agentgrpo.types import Episode, Task


class Composite:
    """The weighted mean of named judges: sum w·score / sum w, so that a grade stays in [0, 1] whatever the weights.

    One judge that fails fails the verdict: a mean over the others would be another measure.
    """

    def __init__(self, *, parts: Mapping[str, tuple[AnswerJudge, float]]) -> None:
        """Raises ConfigError for a negative or non-finite weight, or when no weight is positive."""
        for name, (_, weight) in parts.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(
                    f"composite judge: weight {weight} of '{name}'; a finite number >= 0 is allowed; correct it"
                )
        if not any(weight > 0 for _, weight in parts.values()):
            raise ConfigError(f"composite judge: parts {sorted(parts)} weigh nothing; give at least one a weight > 0")
        self._parts = dict(parts)
        self.judges = tuple(judge for judge, _ in parts.values())
        self.canaries_per_eval = canaries_of(self.judges)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        columns = {name: await judge.grade(task, answers) for name, (judge, _) in self._parts.items()}
        return self._merged(columns, len(answers))

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Verdict]:
        columns = {name: await grade_episodes(judge, task, episodes) for name, (judge, _) in self._parts.items()}
        return self._merged(columns, len(episodes))

    def counts(self) -> Mapping[str, float]:
        return counts_of(self.judges)

    def _merged(self, columns: Mapping[str, Sequence[Verdict]], count: int) -> list[Verdict]:
        total = math.fsum(weight for _, weight in self._parts.values())
        return [
            Verdict(
                score=math.fsum(self._parts[name][1] * verdicts[i].score for name, verdicts in columns.items()) / total,
                detail=", ".join(f"{name} {verdicts[i].score:g}" for name, verdicts in columns.items()),
            )
            for i in range(count)
        ]
