"""Credit by turn on hand-computed groups: returns-to-go, every advantage, and what groups teach."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError, TrainingError
from agentgrpo.core.types import Branch, Episode, RewardResult, ScoredGroup
from agentgrpo.grpo.advantages import ADVANTAGES, TURN_ADVANTAGES, GroupRewards, returns_to_go, turn_advantages
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.samples import group_advantages, is_zero_variance, to_samples, turn_rewards
from tests.builders import episode, given, group, sampled, task

GROUP = [(-0.5, 1.0), (0.0, -0.75, 0.75), (1.25,), None]
"""Returns-to-go: (0.5, 1), (0, 0, 0.75), (1.25). Turns 1 and 2 compare with the last return of who has ended before:
(1, 0, 1.25) and (1, 0.75, 1.25)."""
NUMERATORS = [(0.5 - 1.75 / 3, 0.25), (-1.75 / 3, -0.75, -0.25), (1.25 - 1.75 / 3,)]


def by_turn(advantage: str, eps: float = 0.0) -> list[tuple[float, ...] | None]:
    [credits] = turn_advantages([GROUP], advantage=advantage, eps=eps)
    return credits


def close(turns: tuple[float, ...]) -> object:
    return pytest.approx(turns, rel=1e-14, abs=1e-15)


def test_returns_to_go_are_exact() -> None:
    assert returns_to_go((-0.5, 0.25, 1.0)) == (0.75, 1.25, 1.0)
    assert returns_to_go((0.1,) * 10)[0] == 1.0
    assert returns_to_go(()) == ()


def test_without_a_baseline_it_is_the_return() -> None:
    assert by_turn("none") == [(0.5, 1.0), (0.0, 0.0, 0.75), (1.25,), None]


def test_the_others_are_the_baseline() -> None:
    # turn 0: means of the others 0.625, 0.875, 0.25; turn 1: 0.625 and 1.125; turn 2: 1.125
    expected = [(-0.125, 0.375), (-0.875, -1.125, -0.375), (1.0,)]
    assert by_turn("leave_one_out") == [*map(close, expected), None]


def test_the_mean_of_all_with_the_episode_itself() -> None:
    assert by_turn("group_mean") == [*map(close, NUMERATORS), None]


def test_one_scale_serves_all_turns_of_a_group() -> None:
    scale = math.sqrt(sum(x * x for e in NUMERATORS for x in e) / 6) + 0.25
    assert by_turn("group_zscore", eps=0.25) == [*(close(tuple(x / scale for x in e)) for e in NUMERATORS), None]


def test_or_all_turns_of_the_step() -> None:
    first, second = turn_advantages([GROUP, [(4.0,), (2.0,)]], advantage="batch_zscore", eps=0.25)
    returns = [0.5, 1.0, 0.0, 0.0, 0.75, 1.25, 4.0, 2.0]
    mean = sum(returns) / 8
    scale = math.sqrt(sum((x - mean) ** 2 for x in returns) / 8) + 0.25
    assert second == [close((1 / scale,)), close((-1 / scale,))]
    assert first == [*(close(tuple(x / scale for x in e)) for e in NUMERATORS), None]


def test_an_episode_without_a_turn_is_no_baseline() -> None:
    assert turn_advantages([[(), (1.0,), (0.0, 3.0)]], advantage="leave_one_out") == [[(), (-2.0,), (2.0, 2.0)]]


@pytest.mark.parametrize("advantage", TURN_ADVANTAGES)
@forall(rewards=st.lists(st.one_of(st.none(), st.floats(-9, 9)), min_size=0, max_size=6))
def test_with_one_turn_it_is_the_episode_s_to_the_bit(advantage: str, rewards: list[float | None]) -> None:
    groups = [rewards, [0.5, -0.5]]
    turns = turn_advantages([[None if r is None else (r,) for r in g] for g in groups], advantage=advantage)
    of_episodes = ADVANTAGES[advantage]([GroupRewards(g) for g in groups], eps=1e-6)
    assert [[None if t is None else t[0] for t in g] for g in turns] == of_episodes


@pytest.mark.parametrize("advantage", TURN_ADVANTAGES)
def test_rounding_noise_is_no_information(advantage: str) -> None:
    noisy = [(0.1, 1.0 + 1e-12), (0.1, 1.0), (0.1 - 1e-12, 1.0)]
    [credits] = turn_advantages([noisy], advantage=advantage)
    expected = [returns_to_go(e) for e in noisy] if advantage == "none" else [(0.0, 0.0)] * 3
    assert credits == expected
    assert turn_advantages([[], [None, None]], advantage=advantage) == [[], [None, None]]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_turn_that_brought_no_number_is_refused(odd: float) -> None:
    with pytest.raises(TrainingError, match=r"rewards of turns \[0.0, (nan|inf)\]: only finite ones"):
        turn_advantages([[(0.0, odd), (0.0, 1.0)]], advantage="leave_one_out")


def test_terms_have_no_credit_by_turn() -> None:
    with pytest.raises(
        ConfigError, match="credit=turn with advantage=per_term: credit=turn allows leave_one_out, none, group_m"
    ):
        Algorithm(credit="turn", advantage="per_term")


# --- groups to samples

CREDIT = Algorithm(credit="turn", advantage="leave_one_out")


def result(*turns: float, total: float | None = None) -> RewardResult:
    total = math.fsum(turns) if total is None else total
    return RewardResult(total=total, terms={}, dimensions={}, correctness=0.0, turns=turns)


def searched(sample_index: int) -> Episode:
    """Two turns."""
    return episode(task(), given(1, 2), sampled(3, 4), given(5), sampled(6), sample_index=sample_index)


def test_every_token_of_a_turn_gets_the_turn_s_advantage() -> None:
    one = task(id="q")
    forked = replace(
        episode(one, sample_index=0),
        branches=(
            Branch(segments=(given(1, 2), sampled(3, 4), given(5), sampled(6))),
            Branch(segments=(given(1, 2, 7), sampled(8, 9))),
        ),
    )
    short = episode(one, given(1, 2), sampled(3), sample_index=1)
    scored = ScoredGroup(group=group(forked, short), rewards=(result(-0.5, 0.25, 1.0), result(0.5)))
    advantages = group_advantages([scored], CREDIT)
    assert advantages == [[(0.25, 0.75, 0.5), (-0.25,)]]
    assert [(s.sample_index, s.token_ids, s.advantage) for s in to_samples([scored], advantages)] == [
        (0, (1, 2, 3, 4, 5, 6), (0.0, 0.0, 0.25, 0.25, 0.0, 0.75)),
        (0, (1, 2, 7, 8, 9), (0.0, 0.0, 0.0, 0.5, 0.5)),
        (1, (1, 2, 3), (0.0, 0.0, -0.25)),
    ]


def test_a_reward_that_knows_no_turns_comes_with_the_last_one() -> None:
    assert turn_rewards(searched(0), result(total=0.75)) == (0.0, 0.75)
    assert turn_rewards(searched(0), result(0.25, 0.5)) == (0.25, 0.5)
    with pytest.raises(ValueError, match="task t0, sample 1: 3 rewards of turns for 2 turns"):
        turn_rewards(searched(1), result(0.0, 0.0, 1.0))


def test_equal_totals_may_teach_by_turn() -> None:
    """One paid at once, the other later: what the second turn brought tells them apart."""
    timed = ScoredGroup(group=group(searched(0), searched(1)), rewards=(result(-0.5, 1.0), result(0.0, 0.5)))
    assert group_advantages([timed], CREDIT) == [[(0.0, 0.5), (0.0, -0.5)]]
    assert not is_zero_variance(timed, CREDIT)
    assert is_zero_variance(timed, Algorithm(advantage="leave_one_out"))
    same = ScoredGroup(group=timed.group, rewards=(result(-0.5, 1.0), result(-0.5, 1.0)))
    assert is_zero_variance(same, CREDIT)


def test_an_unscored_episode_stays_out() -> None:
    scored = ScoredGroup(group=group(searched(0), searched(1)), rewards=(result(0.0, 1.0), None))
    assert group_advantages([scored], CREDIT) == [[(0.0, 0.0), None]]
    assert [s.sample_index for s in to_samples([scored], group_advantages([scored], CREDIT))] == [0]
