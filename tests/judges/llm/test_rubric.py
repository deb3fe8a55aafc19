"""Rubrics: a text, a file, criteria with weights, and those that a task brings along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import EpisodeGroup
from agentgrpo.judges.base import AnswerJudge, Grade
from agentgrpo.judges.composed import Composite
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.metrics import rollout_metrics
from tests.builders import episode, task
from tests.judges.llm.models import Spoken, fields, form, says_yes

SUPPORTED = {"criterion": "its claims stand in the trace", "weight": 3}
CRITERIA = {"supported": SUPPORTED, "brief": "it is short"}


class Graded:
    """A model that grades each criterion as told; a question that was made up gets 0."""

    def __init__(self, **grades: float) -> None:
        self.grades, self.asked = grades, list[tuple[str, str]]()

    def __call__(self, system: str, user: str) -> str:
        self.asked.append((system, user))
        made_up = "Velmor" not in user
        row = {name: 0.0 if made_up else self.grades[name] for name in fields(system)}
        return json.dumps({**form(system), **row, "reason": "as told"})


def judge(model: Any, **settings: Any) -> LLMJudge:
    return LLMJudge(completer=Spoken(model), **settings)


async def test_the_grade_is_the_weighted_mean_of_the_criteria_and_each_is_kept() -> None:
    model = Graded(supported=0.5, brief=1.0)
    (grade,) = await judge(model, criteria=CRITERIA, control=False).grade(task(), ["Castin"])
    assert grade == Grade(score=(3 * 0.5 + 1.0) / 4, reason="as told", parts={"supported": 0.5, "brief": 1.0})
    ((system, _),) = model.asked
    assert "- supported: its claims stand in the trace\n- brief: it is short\n" in system
    assert list(form(system)) == ["supported", "brief", "reason"]


async def test_what_the_control_gets_is_taken_off_the_mean() -> None:
    of = judge(says_yes, criteria=CRITERIA)
    (grade,) = await of.grade(task(), ["Castin"])
    assert (grade.score, grade.parts) == (0.0, {"supported": 1.0, "brief": 1.0})
    assert of.counts()["hijacked"] == 1


async def test_votes_are_averaged_by_criterion() -> None:
    grades = iter([0.0, 1.0])
    model = Graded(brief=0.0)

    def votes(system: str, user: str) -> str:
        model.grades = {"brief": next(grades)}
        return model(system, user)

    (grade,) = await judge(votes, criteria={"brief": "short"}, repeats=2, control=False).grade(task(), ["Castin"])
    assert (grade.score, grade.parts) == (0.5, {"brief": 0.5})


@pytest.mark.parametrize(
    ("rubric", "names"),
    [
        (["one", {"criterion": "two", "weight": 0.5}], ["c1", "c2"]),
        ({"polite": "it is polite"}, ["polite"]),
        ("1 = it rhymes", ["score"]),
    ],
)
async def test_a_task_may_bring_its_own(rubric: object, names: list[str]) -> None:
    model = Graded(**dict.fromkeys(names, 0.25))
    (grade,) = await judge(model, criteria=CRITERIA, control=False).grade(task(rubric=rubric), ["Castin"])
    assert grade.score == 0.25
    assert fields(model.asked[0][0]) == names


@pytest.mark.parametrize(
    ("rubric", "told"),
    [
        (7, "a int; criteria are"),
        (["fine", ""], r"metadata.rubric.c2: its criterion is not a text"),
        ({"Reason": "x"}, "'Reason' is not a valid name"),
        ({"reason": "x"}, "'reason' is not a valid name"),
        ([{"criterion": "x", "points": 1}], r"a text is needed, or \{criterion: text, weight: number\}"),
        ([{"criterion": "x", "weight": -1}], "a number of 0 or more is allowed"),
        ([{"criterion": "x", "weight": 0}], "all weights are 0"),
    ],
)
def test_a_rubric_that_is_none_is_refused(rubric: object, told: str) -> None:
    with pytest.raises(DataError, match=told):
        judge(says_yes).refuse_task(task(rubric=rubric))
    if not isinstance(rubric, int):
        with pytest.raises(ConfigError):
            judge(says_yes, criteria=rubric)


async def test_a_file_says_what_to_grade_by(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Grade how well it rhymes.\n")
    model = Graded(score=0.5)
    await judge(model, prompt_file=file, control=False).grade(task(), ["Castin"])
    assert "by this rubric:\nGrade how well it rhymes.\n" in model.asked[0][0]
    with pytest.raises(ConfigError, match="leave one out"):
        judge(model, prompt_file=file, rubric="x")
    with pytest.raises(ConfigError, match="cannot be read"):
        judge(model, prompt_file=tmp_path / "none.txt")
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        judge(model, prompt_file=file)


async def test_two_answers_side_by_side_are_graded_by_the_criteria_in_words() -> None:
    model = Graded(first=1.0, second=0.0)
    opinion = await judge(model, criteria=CRITERIA).opinion(task(), ["Castin", "Orlin"])
    assert opinion.scores == (1.0, 0.0)
    assert "- its claims stand in the trace (weight 3)\n- it is short\n" in model.asked[0][0]
    alone = await judge(Graded(supported=0.5, brief=1.0), criteria=CRITERIA).opinion(task(), ["Castin"])
    assert alone.scores == ((3 * 0.5 + 1.0) / 4,)


async def test_each_criterion_is_in_the_records_and_the_metrics(tmp_path: Path) -> None:
    of: AnswerJudge = judge(Graded(supported=0.5, brief=1.0), criteria=CRITERIA, control=False)
    of = Composite(parts={"llm": (of, 1.0)})
    asked = task()
    group = EpisodeGroup(task=asked, episodes=(episode(asked),))
    scored = await Reward(judge=of, terms={"correctness": Correctness(weight=1.0)}).score(group)
    tags = rollout_metrics([scored], [None], lambda metrics: 0.0)
    assert (tags["reward/criterion/supported"], tags["reward/criterion/brief"]) == (0.5, 1.0)
    assert not any("criterion" in tag for tag in tags if tag.startswith("reward/dimension"))
    file = tmp_path / "t.jsonl"
    write_trajectories(file, scored=[scored], advantages=[[0.0]], dropped=[None], step=0, seed=0)
    (record,) = read_trajectories(file)
    said = record.reward_dimensions
    assert (said["criterion/supported"], said["criterion/brief"], said["correctness"]) == (0.5, 1.0, 0.625)
