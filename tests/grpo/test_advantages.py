"""Advantages against hand-computed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import has_zero_variance
from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards, accepted, batch_zscore, none, per_term
from tests.thorough import examples

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=8)
quickly = settings(max_examples=examples(50), deadline=None)
every_advantage = pytest.mark.parametrize("name", ADVANTAGES)
with_a_baseline = pytest.mark.parametrize("name", [n for n in ADVANTAGES if n not in ("none", "accepted")])


def of_group(name: str, group: Sequence[float | None], eps: float = 1e-6) -> list[float | None]:
    """The advantages of one group by itself, its rewards made of one term."""
    terms = [{} if r is None else {"only": r} for r in group]
    [values] = ADVANTAGES[name]([GroupRewards(group, terms)], eps=eps)
    return values


group_zscore, group_mean, leave_one_out = (
    partial(of_group, name) for name in ("group_zscore", "group_mean", "leave_one_out")
)


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


def test_max_rl_divides_by_the_mean() -> None:
    # one success of four: mean 1/4, so 3 for the success and -1 for each failure
    assert of_group("max_rl", [0.0, 1.0, 0.0, None, 0.0], eps=0.0) == [-1.0, 3.0, -1.0, None, -1.0]
    assert of_group("max_rl", [1.0, 1.0, 1.0, 0.0], eps=0.0) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert of_group("max_rl", [0.0, 1.0], eps=0.5) == [-0.5, 0.5]
    # rewards below 0 bring the mean to -1/4 and 1/100: it divides as 1/2 and 1/4, the means with the best one alone
    assert of_group("max_rl", [-1.5, 1.0], eps=0.0) == [-2.5, 2.5]
    assert of_group("max_rl", [-0.48, 1.0, -0.48, 0.0], eps=0.0) == pytest.approx([-1.96, 3.96, -1.96, -0.04])
    assert of_group("max_rl", [-1.0, 0.0, -0.3]) == [0.0, 0.0, 0.0]


def test_an_unscored_reward_stays_none_and_counts_nowhere() -> None:
    assert group_mean([None, 0.0, None, 4.0]) == [None, -2.0, None, 2.0]
    assert leave_one_out([0.0, None, 4.0]) == [-4.0, None, 4.0]
    assert group_zscore([0.0, 2.0, None, 4.0], eps=0.25)[:2] == group_zscore([0.0, 2.0, 4.0], eps=0.25)[:2]


@with_a_baseline
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
    assert has_zero_variance(group)
    assert of_group(name, group) == expected


def test_a_small_real_difference_is_no_zero_variance() -> None:
    assert not has_zero_variance([1.0, 1.0 + 1e-8])
    assert group_mean([0.0, 2e-8]) == [-1e-8, 1e-8]


@every_advantage
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    for group in ([1.0, bad], [bad, 1.0], [bad]):
        with pytest.raises(TrainingError, match="only finite rewards"):
            of_group(name, group)


@pytest.mark.parametrize("name", [n for n in ADVANTAGES if n not in ("none", "accepted", "max_rl")])
@quickly
@given(group=rewards, shift=st.floats(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(name: str, group: list[float], shift: float) -> None:
    spread = max(group) - min(group)
    if spread > 1e-3:
        shifted = of_group(name, [r + shift for r in group])
        assert shifted == pytest.approx(of_group(name, group), rel=1e-6, abs=1e-9)


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
    values = of_group(name, group)
    assert of_group(name, [group[i] for i in order]) == [values[i] for i in order]


@pytest.mark.parametrize(
    ("group", "least", "expected"),
    [
        ([0.2, 0.9, 0.5], None, [None, 1.0, None]),
        ([0.9, None, 0.9, 0.1], None, [1.0, None, 1.0, None]),
        ([0.9, 0.9 + 5e-10, 0.1], None, [1.0, 1.0, None]),
        ([0.9, 0.9], None, [None, None]),
        ([0.9], None, [None]),
        ([None, None], None, [None, None]),
        ([], None, []),
        ([0.2, 0.9, 0.5], 0.5, [None, 1.0, 1.0]),
        ([0.9, 0.9], 0.5, [1.0, 1.0]),
        ([0.2, None, 0.4], 0.5, [None, None, None]),
    ],
)
def test_what_is_not_accepted_has_no_advantage(group: list, least: float | None, expected: list) -> None:
    assert accepted([GroupRewards(group)], least=least) == [expected]


@pytest.mark.parametrize(
    ("grades", "least", "expected"),
    [
        ([0.0, 1.0, 1.0], None, [None, 1.0, 1.0]),  # the dear one too
        ([1.0, 1.0], None, [1.0, 1.0]),
        ([0.0, 0.0], None, [None, None]),
        ([0.2, None, 0.4], None, [None, None, 1.0]),
        ([None, None], None, [None, None]),
        ([], None, []),
        ([0.2, 0.9, 0.5], 0.5, [None, 1.0, 1.0]),
    ],
)
def test_by_grade_what_it_has_cost_does_not_matter(grades: list, least: float | None, expected: list) -> None:
    group = GroupRewards([None if g is None else g - 0.3 * i for i, g in enumerate(grades)], grades=grades)
    assert accepted([group], by="grade", least=least) == [expected]


def test_the_std_of_the_batch_weighs_groups_by_their_spread() -> None:
    """All rewards 0, 2, 5, 5, 4: mean 3.2, squared deviations 10.24 + 1.44 + 3.24 + 3.24 + 0.64 over 5."""
    std = math.sqrt(18.8 / 5)
    groups = [GroupRewards([0.0, 2.0]), GroupRewards([5.0, 5.0, None]), GroupRewards([4.0])]
    assert batch_zscore(groups, eps=0.5) == [
        [pytest.approx(-1 / (std + 0.5)), pytest.approx(1 / (std + 0.5))],
        [0.0, 0.0, None],
        [0.0],
    ]
    assert batch_zscore([], eps=0.5) == []
    assert batch_zscore([GroupRewards([None, None])]) == [[None, None]]


def test_every_term_tells_episodes_apart_by_itself() -> None:
    """Totals 1.0, 1.0, 0.0: the first two are equal in sum only. z-scores of right (1, 0.9, 0) and of cost (0, 0.1, 0),
    which is a hundredth of the total's spread, weigh the same."""
    terms = [{"right": 1.0}, {"right": 0.9, "cost": 0.1}, {"right": 0.0, "cost": 0.0}]
    [(a, b, c)] = per_term([GroupRewards([1.0, 1.0, 0.0], terms)], eps=0.0)
    right = [(x - 1.9 / 3) / math.sqrt(1.81 / 3 - (1.9 / 3) ** 2) for x in (1.0, 0.9, 0.0)]
    cost = [-1 / math.sqrt(2), 2 / math.sqrt(2), -1 / math.sqrt(2)]
    added = [r + k for r, k in zip(right, cost, strict=True)]
    std = math.sqrt(sum(x * x for x in added) / 3)
    assert (a, b, c) == (pytest.approx(added[0] / std), pytest.approx(added[1] / std), pytest.approx(added[2] / std))
    assert b > a > c


def test_terms_are_normalised_in_the_whole_batch() -> None:
    """Group one differs in two terms, group two in one: its z-scores add up to half as much."""
    one = GroupRewards([0.0, 2.0], [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}])
    two = GroupRewards([1.0, None, 2.0], [{"a": 0.0, "b": 1.0}, {}, {"a": 1.0, "b": 1.0}])
    std = math.sqrt((2**2 * 2 + 1**2 * 2) / 4)
    assert per_term([one, two], eps=0.0) == [
        [pytest.approx(-2 / std), pytest.approx(2 / std)],
        [pytest.approx(-1 / std), None, pytest.approx(1 / std)],
    ]


def test_a_term_without_information_gives_exact_zeros() -> None:
    constant = GroupRewards([0.3, 0.3], [{"a": 0.1 + 0.2}, {"a": 0.3}])
    telling = GroupRewards([0.0, 1.0], [{"a": 0.0}, {"a": 1.0}])
    assert per_term([constant, telling])[0] == [0.0, 0.0]
    with pytest.raises(ValueError, match="2 rewards but 0 mappings of terms"):
        per_term([GroupRewards([0.0, 1.0])])


def test_none_is_the_reward_itself() -> None:
    assert none([GroupRewards([0.5, None, 0.5]), GroupRewards([2.0])]) == [[0.5, None, 0.5], [2.0]]
