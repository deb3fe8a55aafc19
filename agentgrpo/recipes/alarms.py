"""Signs that a run is going wrong, said while it runs; what must not be stepped is refused by the trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW = 10
"""Steps whose reward spread is looked at together."""


class Alarms:
    """`look(step, tags)` returns a line for every alarm that begins; one that lasts is said once (SPEC 3.5)."""

    def __init__(self) -> None:
        self._spreads: deque[float] = deque(maxlen=WINDOW)
        self._ringing: set[str] = set()

    def look(self, step: int, tags: Mapping[str, float]) -> list[str]:
        if "reward/std" in tags:
            self._spreads.append(tags["reward/std"])
        flat = len(self._spreads) == WINDOW and max(self._spreads) < 0.1
        gap = tags.get("policy/logprob_gap_max", 0.0)
        ratio, kl = tags.get("tokens/trainable_ratio", 0.0), tags.get("policy/kl", 0.0)
        found = {
            "mask": (ratio > 0.6, f"{ratio:.0%} of all tokens are trained on: is tool output masked?"),
            "flat": (flat, f"the reward's spread was under 0.1 for {WINDOW} steps: there is little left to learn from"),
            "kl": (kl > 1, f"KL to the reference is {kl:.3g}: lower the learning rate or raise algorithm.kl_coef"),
            "gap": (gap > 1e-2, f"engine and trainer disagree by {gap:.3g} nats on a sampled token"),
        }
        begun = [text for name, (rings, text) in found.items() if rings and name not in self._ringing]
        self._ringing = {name for name, (rings, _) in found.items() if rings}
        return [f"step {step}: {text}" for text in begun]
