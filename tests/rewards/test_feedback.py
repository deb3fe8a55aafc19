"""What people say of recorded episodes, in the reward of episodes alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Episode, EpisodeGroup, RewardResult
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.rewards.feedback import Feedback
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.run.drift import refuse_other_settings
from tests.builders import episode, given, sampled, task

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def lines(*rows: Any) -> Path:
        path = tmp_path / "feedback.jsonl"
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return lines


def said(text: str, answer: str | None = "Castin") -> Episode:
    return episode(task(), given(1), replace(sampled(2), text=text), answer=answer)


async def result(of: Episode, **settings: Any) -> RewardResult:
    reward = Reward(judge=ExactMatch(), terms={"correctness": Correctness(weight=1.0)}, **settings)
    (found,) = (await reward.score(EpisodeGroup(task=of.task, episodes=(of,)))).rewards
    assert found is not None
    return found


async def test_a_grade_is_added_after_scaling_in_every_mode(write: Write) -> None:
    file = write({"task": "t0", "answer": "castin!", "grade": -0.5})
    for mode in ("shaped", "sparse_final_only"):
        found = await result(said("x"), feedback=Feedback(file=file, weight=0.4), reward_scale=10.0, mode=mode)
        assert found.total == pytest.approx(10.0 - 0.2)
        assert found.terms == {"correctness": 10.0, "human_feedback": -0.2}
        assert found.dimensions["human_feedback"] == -0.2
        assert found.turns == (found.total,)


async def test_others_get_nothing_and_without_a_file_there_is_no_term(write: Write) -> None:
    feedback = Feedback(
        file=write({"task": "t0", "answer": "Orlin", "grade": -1}, {"task": "t1", "answer": "Castin", "grade": 1})
    )
    assert (await result(said("x"), feedback=feedback)).terms["human_feedback"] == 0.0
    assert (await result(said("x", None), feedback=feedback)).total == 0.0
    assert "human_feedback" not in (await result(said("x"))).terms


def test_a_response_stands_for_itself_alone(write: Write) -> None:
    row = {"task": "t0", "answer": {"answer": "Castin", "response": "politely: Castin", "id": "t0/1"}, "grade": 1}
    feedback = Feedback(file=write(row))
    assert [feedback.of(said(text)) for text in ("politely: Castin", "rudely: Castin")] == [1.0, 0.0]


def test_of_several_opinions_the_mean_counts(write: Write) -> None:
    feedback = Feedback(
        file=write(
            {"task": "t0", "answer": "Castin", "grade": 0.5},
            {"task": "t0", "chosen": "Orlin", "rejected": "Castin", "by": "me"},
            "",
        ),
        weight=2.0,
    )
    assert (feedback.of(said("x")), feedback.of(said("x", "Orlin"))) == (-0.5, 2.0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"answer": "a", "grade": 1}, "'task' is missing"),
        ({"task": "t0", "answer": "a"}, "a line has task, answer and grade, or"),
        ({"task": "t0", "answer": "a", "grade": 1, "chosen": "b", "rejected": "c"}, "a line has task"),
        ({"task": "t0", "answer": "a", "grade": 2}, "from -1"),
        ({"task": "t0", "answer": "a", "grade": True}, "from -1"),
        ({"task": "t0", "answer": "a", "grade": "1"}, "from -1"),
        ({"task": "t0", "answer": " ", "grade": 1}, "an answer is needed"),
        ({"task": "t0", "answer": {"id": "t0/1"}, "grade": 1}, "an answer is needed"),
        ({"task": "t0", "answer": ["a"], "grade": 1}, "an answer is needed"),
        ({"task": "t0", "chosen": "a", "rejected": "A."}, "are the same"),
        ("[1]", "not an object"),
    ],
)
def test_a_line_that_is_none_is_refused_and_all_are_counted(row: Any, told: str, write: Write) -> None:
    with pytest.raises(DataError, match=rf"line 2: .*{told}"):
        Feedback(file=write({"task": "t0", "answer": "a", "grade": 1}, row))
    with pytest.raises(DataError, match="2 malformed rows"):
        Feedback(file=write(row, row))


def test_an_empty_file_a_missing_one_and_a_weight_that_is_none(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no lines"):
        Feedback(file=write())
    with pytest.raises(DataError, match="is not a file"):
        Feedback(file=tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="finite"):
        Feedback(file=write({"task": "t0", "answer": "a", "grade": 1}), weight=float("inf"))


def test_it_is_a_node_of_the_reward_and_may_come_with_a_resume(write: Write) -> None:
    file = write({"task": "t0", "answer": "Castin", "grade": 1})
    node = {"name": "weighted", "terms": {"correctness": {"weight": 1.0}}}
    told = {**node, "feedback": {"file": str(file), "weight": 0.5}}
    reward = build_node("reward", told, judge=ExactMatch())
    assert reward._feedback.of(said("x")) == 0.5
    assert refuse_other_settings({"reward": node}, {"reward": told}) == [
        f"reward.feedback.file was None, is now '{file}'",
        "reward.feedback.weight was None, is now 0.5",
    ]


def test_a_term_of_that_name_is_refused(write: Write) -> None:
    feedback = Feedback(file=write({"task": "t0", "answer": "Castin", "grade": 1}))
    with pytest.raises(ConfigError, match="rename the term"):
        Reward(judge=ExactMatch(), terms={"human_feedback": Correctness(weight=1.0)}, feedback=feedback)
