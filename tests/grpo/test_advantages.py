"""Advantages against hand-computed values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.errors import TrainingError
from agentgrpo.grpo.advantages import ADVANTAGES, group_mean, group_zscore, leave_one_out
from agentgrpo.types import is_degenerate_group

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=8)
quickly = settings(max_examples=50, deadline=None)
every_advantage = pytest.mark.parametrize("name", ADVANTAGES)


def test_zscore_divides_by_the_population_std_plus_eps() -> None:
    # mean 2, squared deviations 4 + 0 + 4 over 3 -> std sqrt(8 / 3)
    std = math.sqrt(8 / 3)
    assert group_zscore([0.0, 2.0, 4.0], eps=0.0) == [-2 / std, 0.0, 2 / std]
    assert group_zscore([0.0, 2.0, 4.0], eps=0.5) == [-2 / (std + 0.5), 0.0, 2 / (std + 0.5)]
    assert group_zscore([0.0, 1.0]) == pytest.approx([-0.5 / 0.500001, 0.5 / 0.500001], rel=1e-15)


def test_group_mean_only_centres() -> None:
    assert group_mean([0.0, 1.0, 5.0]) == [-2.0, -1.0, 3.0]


def test_leave_one_out_compares_with_the_others() -> None:
    # others' means: (1 + 5) / 2, (0 + 5) / 2, (0 + 1) / 2
    assert leave_one_out([0.0, 1.0, 5.0]) == [0.0 - 3.0, 1.0 - 2.5, 5.0 - 0.5]


def test_an_unscored_reward_stays_none_and_counts_nowhere() -> None:
    assert group_mean([None, 0.0, None, 4.0]) == [None, -2.0, None, 2.0]
    assert leave_one_out([0.0, None, 4.0]) == [-4.0, None, 4.0]
    assert group_zscore([0.0, 2.0, None, 4.0], eps=0.25)[:2] == group_zscore([0.0, 2.0, 4.0], eps=0.25)[:2]


@every_advantage
@pytest.mark.parametrize(
    "group, expected",
    [
        ([], []),
        ([0.7], [0.0]),
        ([None], [None]),
        ([None, 0.7], [None, 0.0]),
        ([0.1 + 0.2, 0.3, 0.3], [0.0, 0.0, 0.0]),
        ([1.0, 1.0 + 5e-10, None], [0.0, 0.0, None]),
    ],
)
def test_a_group_without_information_gives_exact_zeros(name: str, group: list, expected: list) -> None:
    assert is_degenerate_group(group)
    assert ADVANTAGES[name](group) == expected


def test_a_small_real_difference_is_not_degenerate() -> None:
    assert not is_degenerate_group([1.0, 1.0 + 1e-8])
    assert group_mean([0.0, 2e-8]) == [-1e-8, 1e-8]


@every_advantage
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    for group in ([1.0, bad], [bad, 1.0], [bad]):
        with pytest.raises(TrainingError, match="only finite rewards"):
            ADVANTAGES[name](group)


@every_advantage
@quickly
@given(group=rewards, shift=st.floats(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(name: str, group: list[float], shift: float) -> None:
    spread = max(group) - min(group)
    if spread > 1e-3:
        shifted = ADVANTAGES[name]([r + shift for r in group])
        assert shifted == pytest.approx(ADVANTAGES[name](group), rel=1e-6, abs=1e-9)


@quickly
@given(group=rewards, scale=st.floats(0.1, 10))
def test_zscore_does_not_see_the_scale(group: list[float], scale: float) -> None:
    if max(group) - min(group) > 1e-3:
        scaled = group_zscore([r * scale for r in group], eps=0.0)
        assert scaled == pytest.approx(group_zscore(group, eps=0.0), rel=1e-6, abs=1e-9)


@every_advantage
@quickly
@given(data=st.data(), group=rewards)
def test_the_order_within_a_group_changes_no_bit(name: str, data: st.DataObject, group: list[float]) -> None:
    order = data.draw(st.permutations(range(len(group))))
    values = ADVANTAGES[name](group)
    assert ADVANTAGES[name]([group[i] for i in order]) == [values[i] for i in order]
