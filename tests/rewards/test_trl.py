"""TRL's own reward functions, as TRL ships them."""

from __future__ import annotations

from typing import Any

import pytest

from agentgrpo.judges.answers import ExactMatch
from agentgrpo.rewards.own import FunctionTerm
from agentgrpo.rewards.reward import Reward
from tests.builders import group, task
from tests.rewards.test_functions import attempts, totals

rewards: Any = pytest.importorskip("trl.rewards")
pytest.importorskip("math_verify")
TASK = task("What is 1/2?", "0.5", solution=r"\frac{1}{2}")
RIGHT, WRONG = r"<think>half</think>\boxed{\frac{1}{2}}", r"\boxed{3}"


@pytest.mark.parametrize(
    ("function", "expected", "reason"),
    [
        ("accuracy_reward", [1.0, 0.0], "gold_parsed: [1/2"),
        ("reasoning_accuracy_reward", [1.0, 0.0], "answer_parsed: [1/2"),
        ("think_format_reward", [1.0, 0.0], ""),
        (("get_cosine_scaled_reward", {"max_len": 4}), [0.75, -0.75], ""),
        (("get_repetition_penalty_reward", {"ngram_size": 1}), [0.0, 0.0], ""),
        (("get_soft_overlong_punishment", {"max_completion_len": 3, "soft_punish_cache": 2}), [-0.5, -0.5], ""),
    ],
)
async def test_a_reward_function_of_trl_is_taken_as_it_is(function: Any, expected: list[float], reason: str) -> None:
    made = getattr(rewards, function) if isinstance(function, str) else getattr(rewards, function[0])(**function[1])
    reward = Reward(judge=ExactMatch(), terms={"trl": FunctionTerm(made)})
    reward.refuse_task(TASK)
    scored = await reward.score(group(*attempts(RIGHT, WRONG, of=TASK)))
    assert totals(scored) == pytest.approx(expected)
    assert scored.rewards[0] is not None
    assert reason in scored.rewards[0].reason
