"""Several judges as one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Task
from agentgrpo.judges.answers import ExactMatch, TokenF1
from agentgrpo.judges.base import Grade
from agentgrpo.judges.composed import Composite
from tests.builders import task


class Broken:
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        raise JudgeError("no reply", kind="timeout")


async def test_the_grade_is_the_weighted_mean() -> None:
    judge = Composite(parts={"exact": (ExactMatch(), 1.0), "f1": (TokenF1(), 3.0)})
    # "Castin Vel" against "Castin": exact 0, F1 2·1/(2+1); (1·0 + 3·2/3) / 4
    assert await judge.grade(task(), ["Castin", "Castin Vel"]) == [
        Grade(score=1.0, reason="exact 1, f1 1", parts={"exact": 1.0, "f1": 1.0}),
        Grade(score=0.5, reason="exact 0, f1 0.666667", parts={"exact": 0.0, "f1": 2 / 3}),
    ]


async def test_all_right_is_exactly_1_whatever_the_weights() -> None:
    judge = Composite(parts={"a": (ExactMatch(), 0.1), "b": (TokenF1(), 0.2), "c": (ExactMatch(), 0.7)})
    assert [v.score for v in await judge.grade(task(), ["castin"])] == [1.0]


async def test_one_failed_judge_fails_the_verdict() -> None:
    with pytest.raises(JudgeError, match="no reply"):
        await Composite(parts={"exact": (ExactMatch(), 1.0), "llm": (Broken(), 1.0)}).grade(task(), ["Castin"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [((1.0, -0.5), "weight -0.5 of 'f1'"), ((1.0, float("nan")), "weight nan"), ((0.0, 0.0), "are all 0")],
)
def test_bad_weights_are_refused(weights: tuple[float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Composite(parts={"exact": (ExactMatch(), weights[0]), "f1": (TokenF1(), weights[1])})
    with pytest.raises(ConfigError, match="are all 0"):
        Composite(parts={})
