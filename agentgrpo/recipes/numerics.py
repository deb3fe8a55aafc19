"""`agentgrpo check numerics`: what an update computes, held against a scalar reference on this machine and device.

    losses      every loss x aggregation x KL x correction: the trainer's objective on given log-probs, value and
                gradient, in float64 (float32 where the device has no wider one)
    advantages  every advantage
    updates     the gradients of the real trainer on a small random model in float32

What is not equal within its tolerance is named. Nothing is loaded, downloaded or written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from agentgrpo.recipes.comparison import Comparison, table
from agentgrpo.recipes.golden_losses import compare_advantages, compare_losses
from agentgrpo.recipes.golden_updates import compare_updates

NAMED = 10
"""Variants that are not equal and are named; the rest is counted."""


class Numerics(NamedTuple):
    comparisons: Sequence[Comparison]
    device: str
    seconds: float

    @property
    def unequal(self) -> list[Comparison]:
        return [c for c in self.comparisons if not c.equal]

    @property
    def verdict(self) -> str:
        found = f"{len(self.unequal)} of {len(self.comparisons)} are not" if self.unequal else "all are"
        return f"{len(self.comparisons)} variants on {self.device} in {self.seconds:.1f} s: {found} equal"

    def lines(self) -> list[str]:
        named = [f"not equal: {c.part} {c.name}" for c in self.unequal[:NAMED]]
        more = [f"and {len(self.unequal) - NAMED} more; --json has all of them"] if len(self.unequal) > NAMED else []
        return [*table(self.comparisons), *named, *more, self.verdict]

    def json(self) -> str:
        return json.dumps(
            {
                "equal": not self.unequal,
                "device": self.device,
                "torch": torch.__version__,
                "seconds": round(self.seconds, 3),
                "variants": [c.state() for c in self.comparisons],
            }
        )


def check_numerics(device: str) -> Numerics:
    """Raises ConfigError for a device that this machine has not."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # for a few numbers at a time, more threads only wait for each other
    try:
        # The updates come first: they know how to say that a device is missing.
        updates = list(compare_updates(device))
        losses = list(compare_losses(torch.device(device)))
    finally:
        torch.set_num_threads(threads)
    return Numerics([*losses, *compare_advantages(), *updates], device, time.perf_counter() - start)
