"""Scorecards and comparisons: what an outage may not do to a verdict."""

from __future__ import annotations

import pytest

from agentgrpo.errors import DataError
from agentgrpo.recipes.evaluate import Evaluation, Scorecard, compare


def card(correct: list[float], rounds: list[float], *failed: int) -> Scorecard:
    n = len(correct)
    return Scorecard(
        task_ids=tuple(f"t{i}" for i in range(n)),
        kinds=("",) * n,
        metrics={"correctness": tuple(correct), "search_rounds": tuple(rounds)},
        mismatched=(0.0,) * n,
        failed=tuple(f"t{i}" for i in failed),
        pass_at_k={},
    )


def evaluation(baseline: Scorecard, trained: Scorecard) -> Evaluation:
    return Evaluation(
        baseline={"greedy": baseline, "sampled": baseline},
        trained={"greedy": trained, "sampled": trained},
        oracle=None,
        margin=0.02,
        min_discrimination=0.05,
    )


def test_an_outage_is_neither_a_mistake_nor_thrift() -> None:
    """Equal policies, and 40 tasks on which the trained one could not even be run: 0 rounds, 0 right."""
    right, rounds = [1.0, 0.0] * 250, [2.0] * 500
    outage = card([0.0] * 40 + right[40:], [0.0] * 40 + rounds[40:], *range(40))
    result = evaluation(card(right, rounds), outage).to_json()
    assert result["n"] == 460
    assert result["greedy"]["difference"] == {"correctness": [0.0, 0.0, 0.0], "search_rounds": [0.0, 0.0, 0.0]}
    assert result["greedy"]["failures"] == {"baseline": 0, "trained": 40}
    assert result["verdict"] == "INCONCLUSIVE"


def test_a_task_that_failed_on_either_side_leaves_both() -> None:
    result = evaluation(card([1.0, 0.0, 1.0, 1.0], [1.0] * 4, 0), card([1.0, 1.0, 0.0, 1.0], [1.0] * 4, 2)).to_json()
    assert result["n"] == 2
    assert result["greedy"]["baseline"]["correctness"] == 0.5
    assert result["greedy"]["trained"]["correctness"] == 1.0


def test_nothing_is_concluded_from_nothing() -> None:
    with pytest.raises(DataError, match="3 of 4 tasks failed"):
        card([1.0] * 4, [1.0] * 4).without({"t0", "t1", "t2"})


def test_different_tasks_do_not_pair() -> None:
    with pytest.raises(DataError, match="different tasks"):
        compare(card([1.0] * 4, [1.0] * 4), card([1.0] * 3, [1.0] * 3))


def test_scorecards_come_back_from_json() -> None:
    one = card([1.0, 0.0], [1.0, 2.0], 1)
    assert Scorecard.from_json(one.to_json()) == one
