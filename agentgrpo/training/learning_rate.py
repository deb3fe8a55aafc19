"""The learning rate: its schedule, the usual rate by model size, and whether a rate can train the model in a run's
steps.

The usual rate is a straight line, in logarithms, through rates at which learning was observed:

    weights        rate    steps
    0.6 million    1e-3    120 to 150   the embedded worlds (docs/first-run.md)
    135 million    2e-5    14           a chat model and a calculator (docs/real-model.md)
    7 billion      1e-6                 the value in most publications

AdamW moves a weight by at most about the rate per step. The second row is the shortest distance over which learning was
observed: its rates add up to five times the usual rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEASURED_WEIGHTS, MEASURED_RATE = 135e6, 2.5e-5
EXPONENT = -0.75
OF_ADAPTERS = 10
"""Factor for adapters, relative to the rate for all weights."""
LEAST_STEPS = 5
"""Minimum number of steps at the usual rate."""


def usual_rate(weights: int, *, is_adapter: bool = False) -> float:
    """Return the rate for a model with this many weights, trained or not, rounded to two digits."""
    rate = MEASURED_RATE * (weights / MEASURED_WEIGHTS) ** EXPONENT
    return float(f"{min(1e-3, rate) * (OF_ADAPTERS if is_adapter else 1):.1e}")


def scheduled(lr: float, step: int, total_steps: int, *, warmup_steps: int, final_fraction: float) -> float:
    """Return the rate of the 0-based `step`: `lr` times a linear warm-up over `warmup_steps`, times a linear decay from
    1 at step 0 to `final_fraction` at step total_steps - 1 and later."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    progress = min(1.0, step / max(1, total_steps - 1))
    return lr * warmup * (1 - (1 - final_fraction) * progress)


def too_low(optimizer: Mapping[str, Any], weights: int, steps: int, *, is_adapter: bool) -> str | None:
    """Return why optimizer.lr is too low to teach such a model anything in this many steps; None if it is high enough,
    or if even the usual rate would be too low."""
    lr, usual = optimizer.get("lr"), usual_rate(weights, is_adapter=is_adapter)
    if lr is None or optimizer.get("name") != "adamw":
        return None
    shape = {"warmup_steps": optimizer["warmup_steps"], "final_fraction": optimizer["final_fraction"]}
    way, at_usual = (sum(scheduled(rate, i, steps, **shape) for i in range(steps)) for rate in (lr, usual))
    if not way < LEAST_STEPS * usual <= at_usual:
        return None
    return (
        f"optimizer.lr={lr:g} moves a weight by at most {way:.2g} in {steps} steps; {LEAST_STEPS * usual:.2g} is the "
        f"least by which a model of {weights:,} weights is known to learn: optimizer.lr=null takes {usual:g}"
    )
