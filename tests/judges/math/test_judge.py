"""Comparisons in processes: what a hostile answer costs, and whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentgrpo.core.errors import ConfigError, DataError, JudgeError
from agentgrpo.judges.math import judge as judges
from agentgrpo.judges.math.judge import LATE, MathJudge
from tests.builders import task


@pytest.fixture
async def judge() -> AsyncIterator[MathJudge]:
    pytest.importorskip("math_verify")
    made = MathJudge(timeout_s=0.6, processes=1)
    yield made
    await made.close()


async def test_a_hostile_answer_costs_only_itself(judge: MathJudge) -> None:
    hostile = ["9**9**9**9", "(" * 10**6, "$9^{9^{9^9}}$", r"\boxed{10^{10^{10}}}"]
    turns: list[None] = []
    beside = asyncio.create_task(_take(turns))
    grades = await judge.grade(task("?", "5"), ["5", *hostile, r"\boxed{5}"])
    beside.cancel()
    assert turns, "nobody else had the event loop"
    assert [grade.score for grade in grades] == [1, 0, 0, 0, 0, 1]
    assert LATE in {grade.reason for grade in grades[1:-1]}
    assert judge.counts()["late"] > 0


async def _take(turns: list[None]) -> None:
    while True:
        await asyncio.sleep(0.001)
        turns.append(None)


async def test_equal_answers_are_compared_once(judge: MathJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def call(request: dict[str, object]) -> dict[str, str]:
        asked.append(request)
        return {"text": "right"}

    monkeypatch.setattr(judge._workers, "call", call)
    grades = await judge.grade(task("?", "5"), ["5", "5.0", "5"])
    assert [grade.score for grade in grades] == [1, 1, 1]
    assert len(asked) == 2


async def test_a_blank_answer_is_wrong_and_nobody_is_asked(judge: MathJudge) -> None:
    assert [g.score for g in await judge.grade(task("?", "5"), [" \n"])] == [0]
    assert not judge._workers._all


async def test_a_reference_that_cannot_be_read_is_no_grade(judge: MathJudge) -> None:
    with pytest.raises(JudgeError, match="cannot be read as mathematics") as raised:
        await judge.grade(task("?", "the red house"), ["5"])
    assert raised.value.kind == "no_reference"


async def test_a_failure_of_ours_is_no_grade(judge: MathJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(request: dict[str, object]) -> dict[str, str]:
        return {"error": "ImportError: no sympy", "detail": ""}

    monkeypatch.setattr(judge._workers, "call", call)
    with pytest.raises(JudgeError, match="no sympy"):
        await judge.grade(task("?", "5"), ["5"])


def test_a_task_without_answers_is_refused() -> None:
    with pytest.raises(DataError, match="no answers"):
        MathJudge.refuse_task(replace(task(), references=()))


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentgrpo\[math\]'"):
        MathJudge()
