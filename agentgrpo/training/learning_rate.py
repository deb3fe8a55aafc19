"""The learning rate: its schedule, the usual one for a model of some size, and whether it can move that model in the
steps of a run.

The usual rate is a line, in logarithms, through what was seen to learn:

    weights        rate    steps
    0.6 million    1e-3    120 to 150   the embedded worlds (docs/first-run.md)
    135 million    2e-5    14           a chat model and a calculator (docs/real-model.md)
    7 billion      1e-6                 what most publications take

AdamW moves a weight by at most about the rate a step. The second row is the shortest way on which something was
learned: rates that come to five times the usual one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEASURED_WEIGHTS, MEASURED_RATE = 135e6, 2.5e-5
EXPONENT = -0.75
OF_ADAPTERS = 10
"""Times the rate of all weights."""
LEAST_STEPS = 5
"""At the usual rate."""


def usual_rate(weights: int, *, is_adapter: bool = False) -> float:
    """For a model of so many weights, trained or not; in two digits."""
    rate = MEASURED_RATE * (weights / MEASURED_WEIGHTS) ** EXPONENT
    return float(f"{min(1e-3, rate) * (OF_ADAPTERS if is_adapter else 1):.1e}")


def scheduled(lr: float, step: int, total_steps: int, *, warmup_steps: int, final_fraction: float) -> float:
    """Of the 0-based `step`: `lr` times a linear warm-up over `warmup_steps`, times a linear decay from 1 at step 0 to
    `final_fraction` at step total_steps - 1 and after."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    progress = min(1.0, step / max(1, total_steps - 1))
    return lr * warmup * (1 - (1 - final_fraction) * progress)


def too_low(optimizer: Mapping[str, Any], weights: int, steps: int, *, is_adapter: bool) -> str | None:
    """Why optimizer.lr cannot be expected to teach such a model anything in so many steps; None where it may, and where
    no rate could."""
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
