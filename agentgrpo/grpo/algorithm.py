"""The algorithm of a run: which advantage, loss, clip, aggregation and KL, and how often a batch is used.

Data and pure functions only; `training.trainer` is blind to what is chosen here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.grpo.advantages import ADVANTAGES
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import AGGREGATIONS, LOSSES, TokenLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Raises ConfigError for a name that does not exist, a value out of range or a mix that cannot work."""

    loss: str = "grpo"
    """A name of losses.LOSSES."""
    advantage: str = "group_zscore"
    """A name of advantages.ADVANTAGES."""
    advantage_eps: float = 1e-6
    """Added to the standard deviation where the advantage divides by one."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    aggregation: str | None = None
    """A name of losses.AGGREGATIONS; null = the loss's own."""
    max_sampled_tokens: int | None = None
    """The constant aggregation's denominator: the tokens an episode may sample at most. Only for that aggregation."""
    kl_coef: float = 0.0
    """Weight of the KL term in the loss; 0 = no reference is kept and no KL computed."""
    kl: str = "k3"
    """A name of kl.KL_ESTIMATORS."""
    num_epochs: int = 1
    """Passes over each batch of samples."""
    mini_batches: int = 1
    """Optimizer steps per pass; groups stay whole."""

    def __post_init__(self) -> None:
        _require_name("loss", self.loss, LOSSES)
        _require_name("advantage", self.advantage, ADVANTAGES)
        _require_name("kl", self.kl, KL_ESTIMATORS)
        if self.aggregation is not None:
            _require_name("aggregation", self.aggregation, AGGREGATIONS)
        _require("advantage_eps", self.advantage_eps, "a finite number >= 0", 0 <= self.advantage_eps < math.inf)
        _require("clip_low", self.clip_low, "0 < clip_low <= 1", 0 < self.clip_low <= 1)
        _require("clip_high", self.clip_high, "a finite number > 0", 0 < self.clip_high < math.inf)
        _require("kl_coef", self.kl_coef, "a finite number >= 0", 0 <= self.kl_coef < math.inf)
        for name in ("num_epochs", "mini_batches"):
            _require(name, getattr(self, name), "a whole number >= 1", _is_count(getattr(self, name)))
        if self.aggregation_name == "constant":
            n = self.max_sampled_tokens
            _require(
                "max_sampled_tokens",
                n,
                "with aggregation=constant, the most tokens an episode may sample",
                _is_count(n),
            )
        elif self.max_sampled_tokens is not None:
            raise ConfigError(
                f"algorithm.max_sampled_tokens={self.max_sampled_tokens} with aggregation={self.aggregation_name}: "
                f"only aggregation=constant uses it; set it to null or choose that aggregation"
            )

    @property
    def aggregation_name(self) -> str:
        return self.aggregation or LOSSES[self.loss].aggregation

    @property
    def is_on_policy(self) -> bool:
        """Each sample is used once, by the weights that will be stepped: the old policy is the policy."""
        return self.num_epochs == 1 and self.mini_batches == 1

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def skips_zero_advantage(self) -> bool:
        """A sample with advantage 0 has exactly no gradient, because nothing but the policy loss gives one."""
        return not self.needs_reference

    def advantages(self, rewards: Sequence[float | None]) -> list[float | None]:
        """The advantages of one group; None where the reward is None."""
        return ADVANTAGES[self.advantage](rewards, eps=self.advantage_eps)

    def token_weights(self, num_tokens: Sequence[int]) -> list[float]:
        """The weight of each sample's tokens, from the loss-token counts of all samples of the optimizer step."""
        return AGGREGATIONS[self.aggregation_name](num_tokens, self.max_sampled_tokens)

    def token_loss(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> TokenLoss:
        """The policy loss of each token, before its weight; all [M]."""
        return LOSSES[self.loss].token_loss(
            logprobs, old_logprobs, advantages, clip_low=self.clip_low, clip_high=self.clip_high
        )

    def token_kl(self, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """The KL estimate of each token, before `kl_coef` and its weight; all [M]."""
        return KL_ESTIMATORS[self.kl](logprobs, ref_logprobs)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(name: str, given: object, allowed: str, ok: bool) -> None:
    if not ok:
        raise ConfigError(f"algorithm.{name}={given}: allowed is {allowed}")


def _require_name(name: str, given: str, known: Mapping[str, object]) -> None:
    if given not in known:
        raise ConfigError(f"algorithm.{name}={given}: allowed are {', '.join(known)}.{did_you_mean(given, known)}")
