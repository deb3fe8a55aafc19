"""The algorithm of a run: which advantage, loss, clip, aggregation, KL and correction, and how often a batch is used.

Data and pure functions only; `training.trainer` is blind to what is chosen here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.grpo.advantages import (
    ADVANTAGES,
    BRANCH_ADVANTAGES,
    TURN_ADVANTAGES,
    Branches,
    GroupRewards,
    TurnGroup,
    Turns,
    branch_advantages,
    turn_advantages,
)
from agentgrpo.grpo.advantages import BranchGroup as BranchGroup
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.correction import CORRECTIONS, Correction, importance_weights
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES, LossInputs, LossSpec, TokenLoss, log_ratio

KL_PLACES = ("loss", "reward")
REFERENCES = ("frozen", "ema", "periodic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Raises ConfigError for a name that does not exist, a value out of range or a mix that cannot work."""

    loss: str = "clipped"
    """A name of losses.LOSSES."""
    advantage: str = "group_zscore"
    """A name of advantages.ADVANTAGES."""
    advantage_eps: float = 1e-6
    """Added to the standard deviation where the advantage divides by one."""
    credit: str = "episode"
    """episode = one advantage for all tokens; turn = one for each turn, from what it and those after it brought;
    branch = one for each branch, against all branches of its group; position = against those of the same place."""
    clip_low: float | None = None
    """The ratio is clipped below 1 - clip_low; null = the loss's published value. So for all that only one loss has."""
    clip_high: float | None = None
    """The ratio is clipped above 1 + clip_high."""
    clip_dual: float | None = None
    """Where the advantage is negative, the ratio counts as this at most; null = no such bound."""
    sapo_temperature_positive: float | None = None
    sapo_temperature_negative: float | None = None
    vespo_k_positive: float | None = None
    vespo_lambda_positive: float | None = None
    vespo_k_negative: float | None = None
    vespo_lambda_negative: float | None = None
    aggregation: str = "sequence_mean"
    """A name of aggregation.AGGREGATIONS."""
    max_sampled_tokens: int | None = None
    """The constant aggregation's denominator: the tokens an episode may sample at most. Only for that aggregation."""
    kl_coef: float = 0.0
    """Weight of the KL term; 0 = no reference is kept and no KL computed."""
    kl: str = "k3"
    """A name of kl.KL_ESTIMATORS."""
    kl_in: str = "loss"
    """loss = a term of each token's loss, with a gradient; reward = taken off the reward, without one."""
    kl_importance: bool = False
    """Multiply the estimate in the loss by policy / old probability: its gradient becomes unbiased."""
    reference: str = "frozen"
    """What the KL is measured against: the start weights (frozen), or a copy that follows the policy: their moving
    average (ema), or the weights of some steps ago (periodic)."""
    reference_decay: float | None = None
    """Of the moving average, per step. Only for reference=ema."""
    reference_every: int | None = None
    """Steps between two copies. Only for reference=periodic."""
    correction: str = "sequence_mask"
    """A name of correction.CORRECTIONS; it applies where the sampler is not the trainer."""
    correction_cap: float = 3.0
    max_staleness: int = 0
    """Updates that a rollout's weights may be behind: 1 = the next rollout runs during the update, from a copy of what
    trains."""
    num_epochs: int = 1
    """Passes over each batch of samples."""
    mini_batches: int = 1
    """Optimizer steps per pass; groups stay whole."""
    entropy_coef: float = 0.0
    """Weight of each token's entropy as a bonus in its loss."""
    top_entropy_fraction: float | None = None
    """Only the tokens with the highest entropy of the optimizer step, this share of all, have a policy loss."""
    mask_truncated: bool = False
    """Do not train on episodes that ran into a limit of tokens; they count in their group's statistics."""
    replay_groups: int = 0
    """How many groups that taught something are kept, the newest, to fill up steps that have too few of their own."""

    def __post_init__(self) -> None:
        for name, known in _NAMES.items():
            _require_name(name, getattr(self, name), known)
        for name, value in self._tuned.items():
            _require_published(name, value, self.loss, self._spec)
        self._check_ranges()
        self._check_mixes()

    def _check_ranges(self) -> None:
        positive = "a finite number > 0"
        for name, value in self._tuned.items():
            _require(name, value, positive, value is None or 0 < value < math.inf)
        _require("clip_low", self.clip_low, "0 < clip_low <= 1", self.clip_low is None or self.clip_low <= 1)
        _require("clip_dual", self.clip_dual, "a number > 1", self.clip_dual is None or self.clip_dual > 1)
        for name in ("advantage_eps", "kl_coef", "entropy_coef"):
            _require(name, getattr(self, name), "a finite number >= 0", 0 <= getattr(self, name) < math.inf)
        _require("correction_cap", self.correction_cap, "a finite number >= 1", 1 <= self.correction_cap < math.inf)
        _require("max_staleness", self.max_staleness, "0 or 1", self.max_staleness in (0, 1))
        fraction = self.top_entropy_fraction
        allowed = "null or 0 < top_entropy_fraction <= 1"
        _require("top_entropy_fraction", fraction, allowed, fraction is None or 0 < fraction <= 1)
        for name in ("num_epochs", "mini_batches"):
            _require(name, getattr(self, name), "a whole number >= 1", _is_count(getattr(self, name)))
        _require("replay_groups", self.replay_groups, "a whole number >= 0", _is_count(self.replay_groups, least=0))

    def _check_mixes(self) -> None:
        n, decay, every = self.max_sampled_tokens, self.reference_decay, self.reference_every
        _require_only(
            "max_sampled_tokens", n, "aggregation", self.aggregation, "constant",
            "the most tokens an episode may sample", _is_count(n),
        )  # fmt: skip
        _require_only(
            "reference_decay", decay, "reference", self.reference, "ema",
            "a number between 0 and 1, such as 0.99", decay is not None and 0 < decay < 1,
        )  # fmt: skip
        _require_only(
            "reference_every", every, "reference", self.reference, "periodic",
            "a whole number of steps >= 1", _is_count(every),
        )  # fmt: skip
        if self.advantage not in _ADVANTAGES[self.credit]:
            raise ConfigError(
                f"algorithm.credit={self.credit} with advantage={self.advantage}: by {self.credit} there are "
                f"{', '.join(_ADVANTAGES[self.credit])}; choose one of these or credit=episode"
            )
        if self.reference != "frozen" and not self.needs_reference:
            raise ConfigError(
                f"algorithm.reference={self.reference} with kl_coef=0: without a KL term no reference is kept; set "
                "kl_coef or reference=frozen"
            )
        if self.kl_importance and not self.has_kl_loss:
            raise ConfigError(
                f"algorithm.kl_importance=true with kl_coef={self.kl_coef}, kl_in={self.kl_in}: it weighs a KL term in "
                "the loss; set kl_coef > 0 and kl_in=loss, or kl_importance=false"
            )
        if self.loss == "reinforce" and self.num_epochs > 1:
            raise ConfigError(
                f"algorithm.num_epochs={self.num_epochs} with loss=reinforce: it has no ratio, so only the first pass "
                "over a batch is right; set num_epochs=1 or choose loss=clipped"
            )

    @property
    def _spec(self) -> LossSpec:
        return LOSSES[self.loss]

    @property
    def _tuned(self) -> dict[str, float | None]:
        """The keys that belong to some losses only."""
        return {
            "clip_low": self.clip_low,
            "clip_high": self.clip_high,
            "clip_dual": self.clip_dual,
            "sapo_temperature_positive": self.sapo_temperature_positive,
            "sapo_temperature_negative": self.sapo_temperature_negative,
            "vespo_k_positive": self.vespo_k_positive,
            "vespo_lambda_positive": self.vespo_lambda_positive,
            "vespo_k_negative": self.vespo_k_negative,
            "vespo_lambda_negative": self.vespo_lambda_negative,
        }

    @property
    def is_on_policy(self) -> bool:
        """Each sample is used once, by the weights that will be stepped: the old policy is the policy."""
        return self.num_epochs == 1 and self.mini_batches == 1

    @property
    def has_old_samples(self) -> bool:
        """Some may be sampled by weights other than those before the update."""
        return self.max_staleness > 0 or self.replay_groups > 0

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def has_kl_loss(self) -> bool:
        return self.kl_coef > 0 and self.kl_in == "loss"

    @property
    def has_kl_reward(self) -> bool:
        return self.kl_coef > 0 and self.kl_in == "reward"

    @property
    def has_sample_ratio(self) -> bool:
        """The loss needs the ratio of a whole sample."""
        return self._spec.per_sample

    @property
    def corrects_ratio(self) -> bool:
        """A correction is a factor of a sample's ratio, not of the loss."""
        return self._spec.corrects_ratio

    @property
    def corrects_samples(self) -> bool:
        """A correction needs the log-probs of a whole sample."""
        return self.correction.startswith("sequence") or self.corrects_ratio

    @property
    def skips_zero_advantage(self) -> bool:
        """A sample with advantage 0 has exactly no gradient, because nothing but the policy loss gives one, and none on
        that of others."""
        return not self.has_kl_loss and self.entropy_coef == 0 and self.top_entropy_fraction is None

    def advantages(self, groups: Sequence[GroupRewards]) -> list[list[float | None]]:
        """The advantages of a step's groups, one per episode; None where the reward is None."""
        return ADVANTAGES[self.advantage](groups, eps=self.advantage_eps)

    def turn_advantages(self, groups: Sequence[TurnGroup]) -> list[list[Turns | None]]:
        """Those of a step's groups by turn, from what each turn of each episode brought; None where that is None."""
        return turn_advantages(groups, advantage=self.advantage, eps=self.advantage_eps)

    def branch_advantages(self, groups: Sequence[BranchGroup]) -> list[list[Branches | None]]:
        """Those of a step's groups by branch, from the rewards of each episode's branches; None where that is None."""
        by_position = self.credit == "position"
        return branch_advantages(groups, advantage=self.advantage, by_position=by_position, eps=self.advantage_eps)

    def token_weights(self, num_tokens: Sequence[int], groups: Sequence[str]) -> list[float]:
        """The weight of each sample's tokens, from the loss-token counts and groups of all samples of the optimizer
        step."""
        return AGGREGATIONS[self.aggregation](num_tokens, groups, self.max_sampled_tokens)

    def token_loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy loss of each token, before its weight."""
        given, spec = self._tuned, self._spec
        chosen = {k: published if given[k] is None else given[k] for k, published in spec.published.items()}
        return spec.token_loss(inputs, **chosen)

    def token_kl(self, logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """The KL estimate of each token, before `kl_coef` and its weight; all [M]."""
        kl = KL_ESTIMATORS[self.kl](logprobs, ref_logprobs)
        return kl * log_ratio(logprobs, old_logprobs).exp() if self.kl_importance else kl

    def correct(self, logprobs: Tensor, rollout_logprobs: Tensor, num_tokens: Sequence[int]) -> Correction:
        """What makes up for a sampler that is not the trainer: see correction.importance_weights."""
        return importance_weights(self.correction, self.correction_cap, logprobs, rollout_logprobs, num_tokens)


_ADVANTAGES: Mapping[str, Sequence[str]] = {
    "episode": tuple(ADVANTAGES),
    "turn": TURN_ADVANTAGES,
    "branch": BRANCH_ADVANTAGES,
    "position": BRANCH_ADVANTAGES,
}
"""credit -> the advantages there are of it."""
_NAMES: Mapping[str, Sequence[str]] = {
    "loss": tuple(LOSSES),
    "advantage": tuple(ADVANTAGES),
    "credit": tuple(_ADVANTAGES),
    "aggregation": tuple(AGGREGATIONS),
    "kl": tuple(KL_ESTIMATORS),
    "kl_in": KL_PLACES,
    "reference": REFERENCES,
    "correction": CORRECTIONS,
}


def _is_count(value: object, *, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _require(name: str, given: object, allowed: str, ok: bool) -> None:
    if not ok:
        raise ConfigError(f"algorithm.{name}={given}: allowed is {allowed}")


def _require_name(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ConfigError(f"algorithm.{name}={given}: allowed are {', '.join(known)}.{did_you_mean(given, known)}")


def _require_published(name: str, given: float | None, loss: str, spec: LossSpec) -> None:
    if given is not None and name not in spec.published:
        users = ", ".join(n for n, s in LOSSES.items() if name in s.published)
        raise ConfigError(f"algorithm.{name}={given} with loss={loss}: only {users} uses it; set it to null")


def _require_only(name: str, given: object, key: str, chosen: str, user: str, allowed: str, ok: bool) -> None:
    """`given` belongs to `key`=`user`: needed there, and null everywhere else."""
    if chosen == user:
        _require(name, given, f"with {key}={user}, {allowed}", ok)
    elif given is not None:
        raise ConfigError(
            f"algorithm.{name}={given} with {key}={chosen}: only {key}={user} uses it; set it to null or choose that "
            f"{key}"
        )
