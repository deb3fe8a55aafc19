"""Terms of a user's own: what the environment measured, by name, and plain functions of the episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from agentgrpo.core.errors import BadValue, ConfigError, did_you_mean
from agentgrpo.core.numbers import number
from agentgrpo.core.types import Episode

DIMENSION = "environment"


class EnvironmentTerm:
    """weight · a metric of the episode: `reward.terms.tests.name=environment.tests_passed`. `environment.reward` is all
    that the environment paid, for turns and at the end. Implements rewards.base.TurnTerm."""

    dimension = DIMENSION

    def __init__(self, metric: str, *, weight: float, is_cost: bool = False) -> None:
        self.metric, self._weight, self.is_cost = metric, weight, is_cost

    def __call__(self, episode: Episode, correctness: float) -> float:
        """Raises BadValue where the environment has not said the metric: of this episode, or of any."""
        if self.metric not in episode.metrics:
            known = ", ".join(sorted(episode.metrics)) or "nothing"
            raise BadValue(
                f"a reward term reads environment.{self.metric}, which the environment {episode.environment} neither "
                f"measures nor scores; it has {known}; name one of these, or let the environment score it (get_reward, "
                f"score).{did_you_mean(self.metric, episode.metrics)}"
            )
        return self._weight * episode.metrics[self.metric]

    def per_turn(self, episode: Episode) -> Sequence[float]:
        """See rewards.base.TurnTerm: of a metric with one number per turn these, of another one nothing."""
        by_turn = episode.metrics_by_turn.get(self.metric, ())
        if len(by_turn) != len(episode.turns):
            return [0.0] * len(episode.turns)
        return [self._weight * value for value in by_turn]


class FunctionTerm:
    """weight · function(episode): `reward.terms.brief.name=my_terms:brief`. Implements rewards.base.RewardTerm."""

    dimension = DIMENSION

    def __init__(self, function: Callable[[Episode], float], *, weight: float = 1.0, is_cost: bool = False) -> None:
        """Raises ConfigError for a function that cannot be called with an episode alone."""
        self._function, self._weight, self.is_cost = function, weight, is_cost
        self._where = f"reward term {function.__module__}:{function.__qualname__}"
        signature = inspect.signature(function)
        try:
            signature.bind(object())
        except TypeError as e:
            raise ConfigError(f"{self._where} takes {signature}; it is called with an episode and nothing else") from e

    def __call__(self, episode: Episode, correctness: float) -> float:
        """Raises BadValue where the function returns no number."""
        return self._weight * number(self._function(episode), self._where)
