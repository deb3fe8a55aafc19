"""The usual rate by size, and when a rate is too low for a run."""

from __future__ import annotations

import pytest

from agentgrpo.training.learning_rate import scheduled, too_low, usual_rate


@pytest.mark.parametrize(
    ("weights", "rate"),
    [(0.6e6, 1e-3), (135e6, 2.5e-5), (0.6e9, 8.2e-6), (7e9, 1.3e-6)],
)
def test_the_usual_rate_goes_through_what_was_measured(weights: float, rate: float) -> None:
    assert usual_rate(int(weights)) == rate
    assert usual_rate(int(weights), is_adapter=True) == pytest.approx(10 * rate)


def adamw(lr: float | None, **values: float) -> dict[str, object]:
    return {"name": "adamw", "lr": lr, "warmup_steps": 5, "final_fraction": 0.1, **values}


def test_what_cannot_move_a_model_in_so_many_steps() -> None:
    low = too_low(adamw(1e-6), 134_515_008, 150, is_adapter=False)
    assert low is not None
    assert low.startswith("optimizer.lr=1e-06 moves a weight by at most 8")
    assert low.endswith("optimizer.lr=null takes 2.5e-05")
    assert too_low(adamw(2e-5, warmup_steps=3), 134_515_008, 14, is_adapter=False) is None  # as it was measured
    assert too_low(adamw(1e-6), 134_515_008, 2000, is_adapter=False) is None
    assert too_low(adamw(1e-6), 7_000_000_000, 150, is_adapter=False) is None
    assert too_low(adamw(1e-6), 7_000_000_000, 150, is_adapter=True) is None
    assert too_low(adamw(1e-7), 7_000_000_000, 150, is_adapter=True) is not None
    assert too_low(adamw(1e-6), 134_515_008, 2, is_adapter=False) is None  # nor could any other rate
    assert too_low(adamw(None), 134_515_008, 150, is_adapter=False) is None
    assert too_low({"name": "module:Mine", "lr": 1e-9}, 134_515_008, 150, is_adapter=False) is None


def test_the_schedule() -> None:
    rates = [scheduled(1.0, step, 5, warmup_steps=2, final_fraction=0.2) for step in range(6)]
    assert rates == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2, 0.2])
