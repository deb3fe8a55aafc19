"""An environment of Gymnasium that pays with whatever value the seed names: VALUES in order."""

from __future__ import annotations

from typing import Any

import gymnasium

from tests.environments.bad_numbers import VALUES

SEEDS = {name: seed for seed, name in enumerate(VALUES)}


class Paying(gymnasium.Env[int, int]):
    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.paid = list(VALUES.values())[seed or 0]()
        return 0, {}

    def step(self, action: int) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        return 1, self.paid, True, False, {}
