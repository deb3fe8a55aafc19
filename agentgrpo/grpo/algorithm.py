"""The algorithm of a run: its advantage, loss, clip, aggregation, KL term, correction and number of passes per batch.

This module holds data and pure functions only; `training.trainer` does not depend on the choices made here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from agentgrpo.config.values import Count, CountOrZero, Finite, PositiveOrZero, check, fit_arguments
from agentgrpo.core.errors import ConfigError, TrainingError, did_you_mean, line_of
from agentgrpo.grpo.advantages import (
    ADVANTAGES,
    BRANCH_ADVANTAGES,
    TURN_ADVANTAGES,
    Advantage,
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
from agentgrpo.grpo.losses import CORRECTS_RATIO, LOSSES, PER_TOKEN, Loss, LossInputs, TokenLoss, log_ratio

KL_PLACES = ("loss", "reward")
REFERENCES = ("frozen", "ema", "periodic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The settings of the algorithm. Raises ConfigError for an unknown name, a value out of range or an invalid
    combination."""

    loss: str | Loss = "clipped"
    """A name from losses.LOSSES, or a function with the same signature; in YAML a custom function is
    module:function."""
    loss_args: Mapping[str, Any] = field(default_factory=dict)
    """Loss parameters by name that override the loss's defaults; the defaults are the published values."""
    advantage: str | Advantage = "group_zscore"
    """A name from advantages.ADVANTAGES, or a function with the same signature; in YAML a custom function is
    module:function."""
    advantage_args: Mapping[str, Any] = field(default_factory=dict)
    """Advantage parameters by name: `least` of accepted, or the parameters of a custom function."""
    advantage_eps: PositiveOrZero = 1e-6
    """Added to the standard deviation if the advantage divides by one."""
    credit: str = "episode"
    """episode = the tokens of an episode share one advantage; turn = one per turn, from the rewards of this turn and
    later ones; branch = one per branch, compared with all branches of its group; position = one per branch, compared
    with the branches at the same position."""
    aggregation: str = "sequence_mean"
    """A name from aggregation.AGGREGATIONS."""
    max_sampled_tokens: Count | None = None
    """Denominator of the constant aggregation: the maximum number of tokens an episode may sample. Only for that
    aggregation."""
    kl_coef: PositiveOrZero = 0.0
    """Weight of the KL term; 0 = no reference is kept and no KL is computed."""
    kl: str = "k3"
    """A name from kl.KL_ESTIMATORS."""
    kl_in: str = "loss"
    """loss = a term of each token's loss, with a gradient; reward = subtracted from the reward, without a gradient."""
    kl_importance: bool = False
    """Multiply the KL estimate in the loss by policy / old probability, which makes its gradient unbiased."""
    reference: str = "frozen"
    """The model that the KL is measured against: the starting weights (frozen), an exponential moving average of the
    policy (ema), or a copy of the policy renewed every few steps (periodic)."""
    reference_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Decay of the moving average per step. Only for reference=ema."""
    reference_every: Count | None = None
    """Number of steps between two copies. Only for reference=periodic."""
    correction: str = "sequence_mask"
    """A name from correction.CORRECTIONS; it applies if the sampler is not the trainer."""
    correction_cap: Annotated[float, Ge(1), Finite] = 3.0
    max_staleness: Literal[0, 1] = 0
    """How many updates a rollout's weights may lag behind: 1 = the next rollout runs during the update, from a copy of
    the trained weights."""
    num_epochs: Count = 1
    """Number of passes over each batch of samples."""
    mini_batches: Count = 1
    """Number of optimizer steps per pass; a group is never split."""
    entropy_coef: PositiveOrZero = 0.0
    """Weight of the entropy bonus in each token's loss."""
    top_entropy_fraction: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the tokens of an optimizer step that have a policy loss: those with the highest entropy."""
    drop_zero_variance: bool = False
    """Leave out groups in which every advantage is zero. The published methods keep them with advantage 0: then the
    loss and its gradient shrink with the number of informative groups, and KL and entropy see every group. If they are
    left out, each informative group weighs more the fewer there are."""
    mask_truncated: bool = False
    """Do not train on episodes that hit a token limit; they still count in the statistics of their group."""
    replay_groups: CountOrZero = 0
    """How many of the newest informative groups to keep for filling up steps that have too few."""

    def __post_init__(self) -> None:
        for name, known in _NAMES.items():
            _require_name(name, getattr(self, name), known)
        check("algorithm", self)
        self._fit_arguments()
        self._check_mixes()

    def _fit_arguments(self) -> None:
        loss, advantage = self._loss, self._advantage
        losses = fit_arguments("algorithm.loss_args", self.loss_args, loss, called=f"loss={_name(self.loss)}")
        called = f"advantage={_name(self.advantage)}"
        advantages = fit_arguments(
            "algorithm.advantage_args", self.advantage_args, advantage, called=called, provided=("eps",)
        )
        object.__setattr__(self, "loss_args", losses)
        object.__setattr__(self, "advantage_args", advantages)
        if not isinstance(self.loss, str):
            self._try_loss()

    def _try_loss(self) -> None:
        """Try a custom loss on two tokens before any rollout is spent on it."""
        logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
        inputs = LossInputs(
            logprobs, torch.tensor([-1.25, -1.75]), torch.tensor([1.0, -0.5]), torch.zeros(2), torch.ones(2)
        )
        where = f"algorithm.loss={_name(self.loss)}: tried on two tokens, it"
        try:
            found = self._loss(inputs, **self.loss_args)
        except Exception as e:
            raise ConfigError(f"{where} raised {line_of(e)}") from e
        parts = found if isinstance(found, TokenLoss) else ()
        if not parts or any(not isinstance(part, Tensor) or part.shape != (2,) for part in parts):
            raise ConfigError(
                f"{where} returned {_shape(found)}; a TokenLoss of three tensors with a number for each token is needed"
            )
        if not found.loss.requires_grad:
            raise ConfigError(f"{where} returned a loss without a gradient; it must come from x.logprobs, not detached")

    def _check_mixes(self) -> None:
        for key, (name, user, needed) in _ONLY.items():
            _require_only(key, getattr(self, key), name, getattr(self, name), user, needed)
        if self.credit != "episode" and self.advantage not in _ADVANTAGES[self.credit]:
            raise ConfigError(
                f"algorithm.credit={self.credit} with advantage={_name(self.advantage)}: credit={self.credit} allows "
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
    def _loss(self) -> Loss:
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    @property
    def _advantage(self) -> Callable[..., list[list[float | None]]]:
        return ADVANTAGES[self.advantage] if isinstance(self.advantage, str) else self.advantage

    @property
    def is_on_policy(self) -> bool:
        """Whether each sample is used once, by the weights about to be updated, so that the old policy is the
        policy."""
        return self.num_epochs == 1 and self.mini_batches == 1

    @property
    def has_old_samples(self) -> bool:
        """Whether some samples may come from weights other than those before the update."""
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
        """Whether the loss needs the ratio of a whole sample."""
        return self._loss not in PER_TOKEN

    @property
    def corrects_ratio(self) -> bool:
        """Whether the correction is a factor of the sample's ratio, not of the loss."""
        return self._loss in CORRECTS_RATIO

    @property
    def corrects_samples(self) -> bool:
        """Whether the correction needs the log-probs of a whole sample."""
        return self.correction.startswith("sequence") or self.corrects_ratio

    @property
    def skips_zero_advantage(self) -> bool:
        """Whether a sample with advantage 0 has exactly zero gradient and does not affect the gradient of other
        samples: true if the policy loss is the only source of gradients."""
        return not self.has_kl_loss and self.entropy_coef == 0 and self.top_entropy_fraction is None

    def advantages(self, groups: Sequence[GroupRewards]) -> list[list[float | None]]:
        """Return one advantage per episode of a step's groups; None if the reward is None or the episode was not
        accepted. Raises TrainingError for invalid results of a custom function."""
        takes_eps = isinstance(self.advantage, str) or "eps" in inspect.signature(self.advantage).parameters
        eps = {"eps": self.advantage_eps} if takes_eps else {}
        found = self._advantage(groups, **eps, **self.advantage_args)
        if not isinstance(self.advantage, str):
            _refuse_misfits(_name(self.advantage), groups, found)
        return found

    def turn_advantages(self, groups: Sequence[TurnGroup]) -> list[list[Turns | None]]:
        """Return one advantage per turn, from the rewards of each episode's turns; None if an episode's rewards are
        None."""
        return turn_advantages(groups, advantage=_name(self.advantage), eps=self.advantage_eps)

    def branch_advantages(self, groups: Sequence[BranchGroup]) -> list[list[Branches | None]]:
        """Return one advantage per branch, from the rewards of each episode's branches; None if an episode's rewards
        are None."""
        by_position, name = self.credit == "position", _name(self.advantage)
        return branch_advantages(groups, advantage=name, by_position=by_position, eps=self.advantage_eps)

    def token_weights(self, num_tokens: Sequence[int], groups: Sequence[str]) -> list[float]:
        """Return the weight of each sample's tokens, from the loss-token counts and groups of all samples of the
        optimizer step."""
        return AGGREGATIONS[self.aggregation](num_tokens, groups, self.max_sampled_tokens)

    def token_loss(self, inputs: LossInputs) -> TokenLoss:
        """Return the policy loss of each token before weighting."""
        return self._loss(inputs, **self.loss_args)

    def token_kl(self, logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """Return the KL estimate of each token before `kl_coef` and its weight; all [M]."""
        kl = KL_ESTIMATORS[self.kl](logprobs, ref_logprobs)
        return kl * log_ratio(logprobs, old_logprobs).exp() if self.kl_importance else kl

    def correct(self, logprobs: Tensor, rollout_logprobs: Tensor, num_tokens: Sequence[int]) -> Correction:
        """Return the importance weights that correct for a sampler other than the trainer: see
        correction.importance_weights."""
        return importance_weights(self.correction, self.correction_cap, logprobs, rollout_logprobs, num_tokens)


_ADVANTAGES: Mapping[str, Sequence[str]] = {
    "episode": tuple(ADVANTAGES),
    "turn": TURN_ADVANTAGES,
    "branch": BRANCH_ADVANTAGES,
    "position": BRANCH_ADVANTAGES,
}
"""credit -> the advantages available for it."""
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


_FUNCTIONS = ("loss", "advantage")
"""Keys whose value may be a function."""


_ONLY: Mapping[str, tuple[str, str, str]] = {
    "max_sampled_tokens": ("aggregation", "constant", "the most tokens an episode may sample"),
    "reference_decay": ("reference", "ema", "a number between 0 and 1, such as 0.99"),
    "reference_every": ("reference", "periodic", "a whole number of steps >= 1"),
}
"""key -> (the key it depends on, the value that requires it, a description of the required value)"""


def _require_name(name: str, given: object, known: Sequence[str]) -> None:
    if name in _FUNCTIONS and callable(given):
        return
    if given not in known:
        own = "; a function of your own is module:function" if name in _FUNCTIONS else ""
        raise ConfigError(
            f"algorithm.{name}={given}: allowed are {', '.join(known)}{own}.{did_you_mean(str(given), known)}"
        )


def _name(given: Any) -> str:
    """Return the name as the configuration spells it."""
    return given if isinstance(given, str) else f"{given.__module__}:{getattr(given, '__qualname__', given)}"


def _shape(found: object) -> str:
    """Return a short description of a loss function's result."""
    if isinstance(found, tuple):
        return f"{type(found).__name__}({', '.join(map(_shape, found))})"
    return f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__


def _refuse_misfits(name: str, groups: Sequence[GroupRewards], found: Sequence[Sequence[float | None]]) -> None:
    if [len(g.totals) for g in groups] != [len(values) for values in found]:
        raise TrainingError(
            f"algorithm.advantage={name} gave {[len(v) for v in found]} advantages for groups of "
            f"{[len(g.totals) for g in groups]} episodes; one for each is needed"
        )
    for group, values in zip(groups, found, strict=True):
        for reward, value in zip(group.totals, values, strict=True):
            if (value is None) != (reward is None) or not math.isfinite(value or 0.0):
                raise TrainingError(
                    f"algorithm.advantage={name} gave {value} for a reward of {reward}; give a finite number for each "
                    "reward, and None if the reward is None"
                )


def _require_only(name: str, given: object, key: str, chosen: str, user: str, needed: str) -> None:
    """Require `given` if `key` has the value `user`, and require null otherwise."""
    if chosen == user and given is None:
        raise ConfigError(f"algorithm.{name}=null with {key}={user}: it is needed there: {needed}")
    if chosen != user and given is not None:
        raise ConfigError(
            f"algorithm.{name}={given} with {key}={chosen}: only {key}={user} uses it; set it to null or choose that "
            f"{key}"
        )
