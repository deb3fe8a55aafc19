"""The KL term in the reward, by hand: who pays how much, and that everything else stays as it was judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgrpo.core.types import Branch, RewardResult, ScoredGroup
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.kl import TERM, less_kl
from agentgrpo.grpo.samples import group_advantages, to_samples
from tests.builders import episode, given, group, sampled, task

ONE = task(id="q")
FORKED = replace(
    episode(ONE),
    branches=(
        Branch(segments=(given(1, 2), sampled(3, 4), given(5), sampled(6))),
        Branch(segments=(given(1, 7), sampled(8))),
    ),
)
SHORT = episode(ONE, given(1, 2), sampled(3, 4), sample_index=1)
LOST = episode(ONE, given(1, 2), sampled(3), sample_index=2)
JUDGED = ScoredGroup(
    group=group(FORKED, SHORT, LOST),
    rewards=(
        RewardResult(total=1.0, terms={"x": 1.0}, dimensions={"d": 1.0}, correctness=0.5, turns=(-0.5, 0.5, 1.0)),
        RewardResult(total=0.5, terms={"x": 0.5}, dimensions={"d": 0.5}, correctness=0.5),
        None,
    ),
)
TOKEN_KL = [[1.0, 3.0, -2.0], [4.0], [8.0, 0.5]]
"""Of the branches of the two scored episodes."""


def test_each_turn_pays_for_its_own_tokens() -> None:
    [paid] = less_kl([JUDGED], TOKEN_KL, 0.125)
    # turns: 0.125 of 4, -2, 4; and of 8.5
    assert paid == replace(
        JUDGED,
        rewards=(
            RewardResult(
                total=0.25,
                terms={"x": 1.0, TERM: -0.75},
                dimensions={"d": 1.0},
                correctness=0.5,
                turns=(-1.0, 0.75, 0.5),
            ),
            RewardResult(
                total=-0.5625, terms={"x": 0.5, TERM: -1.0625}, dimensions={"d": 0.5}, correctness=0.5, turns=(-0.5625,)
            ),
            None,
        ),
    )


@pytest.mark.parametrize(
    ("credit", "expected"),
    [("episode", [0.8125, -0.8125, None]), ("turn", [(0.8125, 1.8125, 1.0625), (-0.8125,), None])],
)
def test_the_advantages_are_of_what_is_left(credit: str, expected: list[object]) -> None:
    algorithm = Algorithm(advantage="leave_one_out", credit=credit)
    assert group_advantages(less_kl([JUDGED], TOKEN_KL, 0.125), algorithm) == [expected]


def test_the_branches_are_those_of_the_samples() -> None:
    samples = to_samples([JUDGED], [[0.0, 0.0, None]])
    assert [sum(s.loss_mask) for s in samples] == [len(kl) for kl in TOKEN_KL]
    with pytest.raises(ValueError, match="zip"):
        less_kl([JUDGED], TOKEN_KL[:1], 0.125)


def test_a_reference_that_agrees_takes_nothing() -> None:
    [paid] = less_kl([JUDGED], [[0.0] * 3, [0.0], [0.0] * 2], 0.125)
    assert [r and (r.total, str(r.terms[TERM])) for r in paid.rewards] == [(1.0, "0.0"), (0.5, "0.0"), None]
