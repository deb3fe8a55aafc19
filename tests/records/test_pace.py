"""Time left: the median of what was seen lately, never a guess and never negative."""

from __future__ import annotations

import pytest

from agentgrpo.records.screen import RECENT, Pace, clock


class Times:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def paced(*answers: tuple[float, float]) -> tuple[Pace, Times]:
    """answers: (time, position)."""
    now = Times()
    pace = Pace(now=now)
    for now.time, position in answers:
        pace.reached(position)
    return pace, now


@pytest.mark.parametrize(
    "answers", [(), ((50.0, 1),), ((50.0, 70), (50.5, 71)), ((1.0, 5), (9.0, 5))], ids=["none", "one", "soon", "still"]
)
def test_nothing_is_said_before_there_is_evidence(answers: tuple[tuple[float, float], ...]) -> None:
    pace, _ = paced(*answers)
    assert (pace.seconds_per_unit, pace.left(10)) == (None, None)


def test_what_was_done_before_says_nothing_of_the_speed() -> None:
    pace, _ = paced((0.0, 70), (4.0, 71))  # a run that is resumed after step 70
    assert pace.left(29) == 4.0 * 29


def test_one_that_stalls_changes_nothing() -> None:
    steady = [(float(2 * i), float(i)) for i in range(1, 8)]
    pace, now = paced(*steady, (600.0, 8.0))
    assert pace.left(10) == 20.0
    now.time = 602.0
    pace.reached(9.0)
    assert pace.left(10) == 20.0


def test_only_the_last_count() -> None:
    slow = [(10.0 * i, float(i)) for i in range(20)]
    fast = [(190.0 + 2 * i, 19.0 + i) for i in range(1, RECENT + 1)]
    assert paced(*slow)[0].left(3) == 30.0
    assert paced(*slow, *fast)[0].left(3) == 6.0


def test_answers_in_bursts_are_counted_together() -> None:
    """Sixteen episodes every 5 s, a millisecond apart: 5/16 s each and not a millisecond."""
    pace, _ = paced(*((5.0 * burst + i / 1000, 16.0 * burst + i) for burst in range(1, 6) for i in range(16)))
    assert pace.seconds_per_unit == pytest.approx(5 / 16, abs=1e-3)


def test_it_falls_between_answers_and_is_never_negative() -> None:
    pace, now = paced((0.0, 0), (4.0, 1))
    seen = []
    for now.time in (4.0, 6.0, 8.0, 9.0, 1000.0):
        seen.append(pace.left(2))
    assert seen == [8.0, 6.0, 4.0, 4.0, 4.0]
    assert [pace.left(units) for units in (1, 0, -3)] == [0.0, 0.0, 0.0]


def test_other_work_begins_anew() -> None:
    pace, _ = paced((0.0, 0), (4.0, 1))
    pace.begin()
    assert pace.left(2) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (125, "2:05"), (3600, "1:00:00"), (360_061, "100:01:01")]
)
def test_clocks(seconds: float, text: str) -> None:
    assert clock(seconds) == text
