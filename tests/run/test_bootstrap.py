"""Differences with intervals, the verdict's table, pass@k by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from agentgrpo.config.settings import Criterion
from agentgrpo.run.evaluate import Verdict, paired_difference, pass_at_k, sign_test, verdict


def test_a_constant_difference_has_a_point_interval() -> None:
    assert paired_difference([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]) == (-0.5, -0.5, -0.5)


def test_the_interval_holds_the_mean_and_narrows_with_more_tasks() -> None:
    few = paired_difference([0.0] * 20, [0.0, 1.0] * 10)
    many = paired_difference([0.0] * 2000, [0.0, 1.0] * 1000)
    assert few[0] == many[0] == 0.5
    assert few[1] < 0.5 < few[2]
    # standard error = 0.5 / sqrt(n): 95 % half widths are near 0.219 and 0.0219
    assert 0.15 < few[2] - 0.5 < 0.27
    assert 0.017 < many[2] - 0.5 < 0.027


def test_with_strata_it_is_the_mean_of_their_means() -> None:
    """Of 30 tasks a rose by 0 or 1, of 10 tasks b by 3: (0.5 + 3) / 2, and all of the noise is that of a."""
    strata = ["a"] * 30 + ["b"] * 10
    mean, low, high = paired_difference([0.0] * 40, [0.0, 1.0] * 15 + [3.0] * 10, strata=strata)
    alone = paired_difference([0.0] * 30, [0.0, 1.0] * 15)
    assert (mean, low, high) == pytest.approx((1.75, (alone[1] + 3) / 2, (alone[2] + 3) / 2))


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = [0.0, 1.0, 0.5, -1.0] * 25
    _, low, high = paired_difference([0.0] * 100, values)
    _, lower, higher = paired_difference([0.0] * 100, values, level=0.999)
    # 3.29 standard errors in place of 1.96
    assert 1.5 < (higher - lower) / (high - low) < 1.9


def test_it_is_paired() -> None:
    # the same values in another order: unpaired means are equal, paired differences are not constant
    assert paired_difference([0.0, 1.0] * 50, [1.0, 0.0] * 50)[1] < -0.1


def test_unequal_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many tasks"):
        paired_difference([1.0], [1.0, 2.0])


LOWER, SAME, HIGHER = (-0.5, -0.6, -0.4), (0.0, -0.1, 0.1), (0.5, 0.4, 0.6)
CLEAR, NONE = (0.8, 0.75, 0.85), (0.0, 0.0, 0.0)

Difference = tuple[float, float, float]


def judged(
    differences: dict[str, Difference],
    *,
    criterion: Criterion,
    discrimination: Difference = CLEAR,
    fell: Sequence[str] = (),
    chance: float = 0.0,
) -> tuple[Verdict, str]:
    return verdict(
        differences,
        discrimination,
        quality="correctness",
        spending="search_rounds",
        criterion=criterion,
        margin=0.02,
        min_discrimination=0.05,
        fell=fell,
        chance=chance,
    )


@pytest.mark.parametrize(
    ("higher", "lower", "p"),
    [(0, 0, 1.0), (4, 0, 0.125), (6, 0, 0.03125), (1, 7, 0.0703125), (3, 3, 1.0), (9, 1, 22 / 1024)],
)
def test_the_sign_test_counts_the_tasks_that_changed(higher: int, lower: int, p: float) -> None:
    before = [0.5] * (higher + lower + 100)
    after = [1.0] * higher + [0.0] * lower + [0.5] * 100
    assert sign_test(before, after) == pytest.approx(p)
    assert sign_test([0.0] * 3000, [1.0] * 3000) < 1e-300


def test_four_tasks_that_changed_prove_nothing_though_the_interval_excludes_zero() -> None:
    """A run with shuffled rewards: a kind of question, of four, had turned right by chance."""
    before, after = [0.0] * 115, [1.0] * 4 + [0.0] * 111
    difference = paired_difference(before, after)
    assert difference[1] > 0
    found, reason = judged({"correctness": difference}, criterion="quality", chance=sign_test(before, after))
    assert found is Verdict.INCONCLUSIVE
    assert reason == "correctness changed in too few tasks to tell from chance (sign test: p=0.125)"


@pytest.mark.parametrize(
    ("rounds", "correctness", "discrimination", "expected"),
    [
        (LOWER, HIGHER, CLEAR, Verdict.PASS),
        (LOWER, (0.0, -0.01, 0.01), CLEAR, Verdict.PASS),
        (LOWER, SAME, CLEAR, Verdict.INCONCLUSIVE),  # a loss of 0.1 cannot be ruled out
        (LOWER, LOWER, CLEAR, Verdict.FAIL),
        (SAME, HIGHER, CLEAR, Verdict.INCONCLUSIVE),
        (HIGHER, HIGHER, CLEAR, Verdict.FAIL),
        (LOWER, HIGHER, NONE, Verdict.INCONCLUSIVE),  # a judge that likes every answer
        (LOWER, (0.0, 0.0, 0.0), NONE, Verdict.INCONCLUSIVE),  # never right before, never right after
    ],
)
def test_verdicts(
    rounds: Difference,
    correctness: Difference,
    discrimination: Difference,
    expected: Verdict,
) -> None:
    found, _ = judged(
        {"search_rounds": rounds, "correctness": correctness}, criterion="thrift", discrimination=discrimination
    )
    assert found is expected


@pytest.mark.parametrize(
    ("criterion", "spent", "quality", "expected"),
    [
        ("quality", HIGHER, HIGHER, "PASS: correctness is higher"),
        ("quality", LOWER, SAME, "INCONCLUSIVE: correctness is not higher beyond the interval's noise"),
        ("quality", LOWER, LOWER, "FAIL: correctness fell"),
        ("thrift", HIGHER, HIGHER, "FAIL: search rounds rose"),
        ("thrift", LOWER, HIGHER, "PASS: fewer search rounds, correctness not lower"),
        ("cost", LOWER, HIGHER, "PASS: less cost, correctness not lower"),
        ("cost", SAME, HIGHER, "INCONCLUSIVE: cost is not lower beyond the interval's noise"),
        ("cost", HIGHER, HIGHER, "FAIL: cost rose"),
        ("pareto", LOWER, HIGHER, "PASS: correctness is higher, fewer search rounds"),
        ("pareto", LOWER, (0.0, -0.01, 0.01), "PASS: fewer search rounds, correctness not lower"),
        ("pareto", SAME, HIGHER, "PASS: correctness is higher"),
        ("pareto", SAME, SAME, "INCONCLUSIVE: neither is correctness higher nor are search rounds lower, beyond"),
        ("pareto", HIGHER, HIGHER, "FAIL: search rounds rose"),
    ],
)
def test_what_passes_is_chosen(criterion: Criterion, spent: Difference, quality: Difference, expected: str) -> None:
    other = "search_rounds" if criterion == "cost" else "cost"
    watched = "cost" if criterion == "cost" else "search_rounds"
    found, reason = judged(
        {watched: spent, other: SAME, "correctness": quality},
        criterion=criterion,
    )
    assert f"{found}: {reason}".startswith(expected)


@pytest.mark.parametrize("criterion", get_args(Criterion))
def test_nothing_passes_in_which_a_kind_of_task_fell(criterion: Criterion) -> None:
    found = judged(
        {"search_rounds": LOWER, "cost": LOWER, "correctness": HIGHER},
        criterion=criterion,
        fell=["maker"],
    )
    assert found == (Verdict.INCONCLUSIVE, "correctness fell in tasks of the kind maker")


def test_exit_codes() -> None:
    assert [v.exit_code for v in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE)] == [0, 9, 10]


def test_pass_at_k_by_hand() -> None:
    # 2 right of 4: pass@1 = 1/2, pass@2 = 1 - C(2,2)/C(4,2) = 1 - 1/6, pass@4 = 1
    assert pass_at_k(2, 4, 1) == pytest.approx(0.5, abs=1e-12)
    assert pass_at_k(2, 4, 2) == pytest.approx(5 / 6, abs=1e-12)
    assert pass_at_k(2, 4, 4) == 1.0
    assert pass_at_k(0, 4, 4) == 0.0
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(5, 4, 1)
