"""Credit by turn does not bend the policy gradient: every group of a small problem, with its probability.

A tabular softmax policy acts up to three turns; two actions go on, one ends the episode. What a turn brings depends on
all before it, and the end brings something of its own. Gradients are by the logits of every (state, action).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards, returns_to_go, turn_advantages

STOP, LONGEST, ACTIONS = 2, 3, 3
State = tuple[int, ...]
"""The actions so far."""
STATES = [s for n in range(LONGEST) for s in itertools.product((0, 1), repeat=n)]
LOGITS = {s: [math.sin(3 * i + 1.7 * a) for a in range(ACTIONS)] for i, s in enumerate(STATES)}
Vector = np.ndarray
Estimator = Callable[[Sequence["Attempt"]], list[list[float]]]
"""A group -> the advantage of every turn."""


@dataclass(frozen=True)
class Attempt:
    actions: tuple[int, ...]
    probability: float
    rewards: tuple[float, ...]
    scores: Vector
    """[turns, parameters]: the gradient of each action's log-probability."""


def policy(state: State) -> Vector:
    exp = np.exp(LOGITS[state])
    return np.asarray(exp / exp.sum())


def brings(actions: tuple[int, ...]) -> float:
    """Of the last of `actions`: a price, and at the end what the path was worth."""
    price = -1.5 if actions[-1] == 0 else -0.25 * len(actions)
    is_over = actions[-1] == STOP or len(actions) == LONGEST
    return price + (math.cos(sum(3.0**i * a for i, a in enumerate(actions))) if is_over else 0.0)


def attempts(actions: tuple[int, ...] = ()) -> list[Attempt]:
    if actions and (actions[-1] == STOP or len(actions) == LONGEST):
        probability, scores = 1.0, np.zeros((len(actions), len(STATES) * ACTIONS))
        for turn, action in enumerate(actions):
            state = actions[:turn]
            at = STATES.index(state) * ACTIONS
            scores[turn, at : at + ACTIONS] = -policy(state)
            scores[turn, at + action] += 1
            probability *= policy(state)[action]
        return [Attempt(actions, probability, tuple(brings(actions[: t + 1]) for t in range(len(actions))), scores)]
    return [a for action in range(ACTIONS) for a in attempts((*actions, action))]


ATTEMPTS = attempts()
GRADIENT = sum(a.probability * sum(a.rewards) * a.scores.sum(0) for a in ATTEMPTS)
"""Of the expected reward, by its definition."""


def by_turn(advantage: str) -> Estimator:
    def estimate(group: Sequence[Attempt]) -> list[list[float]]:
        [credits] = turn_advantages([[a.rewards for a in group]], advantage=advantage)
        return [list(c) for c in credits if c is not None]

    return estimate


def by_episode(group: Sequence[Attempt]) -> list[list[float]]:
    [credits] = ADVANTAGES["leave_one_out"]([GroupRewards([math.fsum(a.rewards) for a in group])])
    return [[c] * len(a.actions) for a, c in zip(group, credits, strict=True) if c is not None]


@cache
def moments(estimator: Estimator, size: int) -> tuple[Vector, float]:
    """Mean of the gradient estimate over all groups, and its variance, summed over the parameters."""
    first, second = np.zeros(len(STATES) * ACTIONS), 0.0
    for group in itertools.product(ATTEMPTS, repeat=size):
        probability = math.prod(a.probability for a in group)
        gradient = sum(np.asarray(c) @ a.scores for a, c in zip(group, estimator(group), strict=True)) / np.float64(
            size
        )
        first += probability * gradient
        second += probability * float(gradient @ gradient)
    return first, second - float(first @ first)


LEAVE_ONE_OUT, NONE, GROUP_MEAN = by_turn("leave_one_out"), by_turn("none"), by_turn("group_mean")


def test_the_problem_is_what_it_should_be() -> None:
    assert len(ATTEMPTS) == 15
    assert {len(a.actions) for a in ATTEMPTS} == {1, 2, 3}
    assert math.fsum(a.probability for a in ATTEMPTS) == pytest.approx(1, abs=1e-15)
    assert float(np.abs(GRADIENT).max()) > 0.05


@pytest.mark.parametrize("size", [2, 3])
def test_credit_by_turn_is_unbiased_and_agrees_with_credit_by_episode(size: int) -> None:
    turns, episodes = moments(LEAVE_ONE_OUT, size)[0], moments(by_episode, size)[0]
    assert np.abs(turns - GRADIENT).max() <= 1e-10
    assert np.abs(episodes - GRADIENT).max() <= 1e-10
    assert np.abs(moments(NONE, size)[0] - GRADIENT).max() <= 1e-10


@pytest.mark.parametrize("size", [2, 3])
def test_it_has_less_variance_than_credit_by_episode(size: int) -> None:
    assert moments(LEAVE_ONE_OUT, size)[1] < 0.9 * moments(by_episode, size)[1]


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_with_the_episode_itself_shrinks_the_gradient(size: int) -> None:
    found = moments(GROUP_MEAN, size)[0]
    assert np.abs(found - GRADIENT * (size - 1) / size).max() <= 1e-10
    assert np.abs(found - GRADIENT).max() > 0.01


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_of_those_that_reached_the_turn_with_the_episode_itself_bends_it(size: int) -> None:
    """It takes most off the turns that few reach."""

    def reached(group: Sequence[Attempt]) -> list[list[float]]:
        returns = [returns_to_go(a.rewards) for a in group]
        at = [[r[turn] for r in returns if turn < len(r)] for turn in range(LONGEST)]
        return [[g - sum(at[turn]) / len(at[turn]) for turn, g in enumerate(r)] for r in returns]

    biased = moments(reached, size)[0]
    assert float(biased @ GRADIENT / np.linalg.norm(biased) / np.linalg.norm(GRADIENT)) < 1 - 1e-3


def test_what_a_turn_leads_to_is_part_of_its_credit() -> None:
    def later(group: Sequence[Attempt]) -> list[list[float]]:
        """A baseline of the episode's own later rewards: each turn counts as if it led to nothing."""
        return [list(a.rewards) for a in group]

    assert np.abs(moments(later, 2)[0] - GRADIENT).max() > 0.05


def test_a_cost_that_later_turns_can_waive_belongs_to_them() -> None:
    """Why a cost that only right answers pay comes with the last turn: put earlier, its waiver would go uncredited."""

    def waived(actions: tuple[int, ...]) -> float:
        return 0.5 if actions[-1] == STOP else 0.0

    exact = sum(a.probability * (sum(a.rewards) + waived(a.actions)) * a.scores.sum(0) for a in ATTEMPTS)

    def mean(place: int) -> Vector:
        def estimate(group: Sequence[Attempt]) -> list[list[float]]:
            rewards = [list(a.rewards) for a in group]
            for a, r in zip(group, rewards, strict=True):
                r[place] += waived(a.actions)
            [credits] = turn_advantages([[tuple(r) for r in rewards]], advantage="leave_one_out")
            return [list(c) for c in credits if c is not None]

        return moments(estimate, 2)[0]

    assert np.abs(mean(-1) - exact).max() <= 1e-10
    assert np.abs(mean(0) - exact).max() > 0.01
