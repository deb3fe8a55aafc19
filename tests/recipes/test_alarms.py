"""Alarms begin where SPEC 3.5 says, and are said once."""

from __future__ import annotations

from agentgrpo.recipes.alarms import WINDOW, Alarms

FINE = {"reward/std": 0.4, "tokens/trainable_ratio": 0.3, "policy/kl": 0.01, "policy/logprob_gap_max": 1e-5}


def test_a_healthy_run_is_silent() -> None:
    alarms = Alarms()
    assert [alarms.look(step, FINE) for step in range(30)] == [[]] * 30


def test_each_alarm_is_said_when_it_begins_and_again_only_after_it_stopped() -> None:
    alarms = Alarms()
    high = FINE | {"policy/kl": 1.5}
    said = [len(alarms.look(step, tags)) for step, tags in enumerate([FINE, high, high, FINE, high])]
    assert said == [0, 1, 0, 0, 1]


def test_thresholds() -> None:
    for tag, value in (("tokens/trainable_ratio", 0.61), ("policy/kl", 1.01), ("policy/logprob_gap_max", 0.02)):
        assert len(Alarms().look(0, FINE | {tag: value})) == 1, tag
        assert Alarms().look(0, FINE | {tag: value - 0.02}) == [], tag


def test_a_flat_reward_needs_a_whole_window() -> None:
    alarms = Alarms()
    said = [len(alarms.look(step, FINE | {"reward/std": 0.09})) for step in range(WINDOW + 1)]
    assert said == [0] * (WINDOW - 1) + [1, 0]
