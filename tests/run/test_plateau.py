"""Since when a run has hardly learned anything, of rows as metrics.jsonl has them."""

from __future__ import annotations

from typing import Any

from agentgrpo.run.plateau import plateau_line

ALIKE = [0.8, 0.9]
"""Rewards that differ as noise does."""


def run(*stretches: tuple[int, float, list[float]]) -> list[dict[str, Any]]:
    """(steps, share of groups with a signal, mean rewards in turn) each."""
    flat = [(share, rewards[i % len(rewards)]) for steps, share, rewards in stretches for i in range(steps)]
    return [{"step": i, "groups/informative": s, "reward/mean": r} for i, (s, r) in enumerate(flat)]


def test_steps_that_taught_nothing_are_counted_from_their_first() -> None:
    rows = run((60, 0.7, [0.3]), (60, 0.125, ALIKE))
    assert plateau_line(rows) == (
        "note: zero-variance groups 88 % since step 60; run.max_steps=70 would have shown the same"
    )


def test_a_reward_that_still_moves_is_said_instead() -> None:
    rows = run((40, 0.7, [0.3]), (10, 0.1, ALIKE), (30, 0.1, [0.9, 1.0]))
    line = plateau_line(rows) or ""
    assert line.startswith(
        "note: zero-variance groups 90 % since step 40; yet the mean reward rose by 0.100 after step 50, "
    )
    assert "would have shown the same" not in line
    fallen = run((40, 0.7, [0.3]), (10, 0.1, ALIKE), (30, 0.1, [0.7, 0.8]))
    assert "yet the mean reward fell by 0.100 after step 50" in (plateau_line(fallen) or "")


def test_a_run_that_learns_to_its_end_has_none() -> None:
    assert plateau_line(run((100, 0.5, ALIKE))) is None
    assert plateau_line(run((60, 0.1, ALIKE), (40, 0.5, ALIKE))) is None
    assert plateau_line([]) is None


def test_a_good_stretch_before_it_is_no_part_of_it() -> None:
    """Though over all of the rest groups with a signal would be few enough with it, too."""
    line = plateau_line(run((40, 0.7, [0.3]), (1, 0.1, ALIKE), (10, 0.9, ALIKE), (200, 0.1, ALIKE))) or ""
    assert line.startswith("note: zero-variance groups 90 % since step 51;")


def test_a_run_that_ends_soon_after_could_not_have_ended_earlier() -> None:
    assert plateau_line(run((60, 0.7, [0.3]), (19, 0.1, ALIKE))) is None
    assert plateau_line(run((60, 0.7, [0.3]), (20, 0.1, ALIKE))) is not None


def test_steps_that_were_skipped_say_nothing() -> None:
    rows = run((60, 0.7, [0.3]), (30, 0.1, ALIKE))
    rows.insert(70, {"step": 70, "skipped": 1.0})
    assert plateau_line(rows) is not None
