"""The algorithm of a run: which advantage, loss, clip, aggregation, KL and correction, and how often a batch is used.

Data and pure functions only; `training.trainer` is blind to what is chosen here."""

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
    """Raises ConfigError for a name that does not exist, a value out of range or a mix that cannot work."""

    loss: str | Loss = "clipped"
    """A name of losses.LOSSES, or a function like those; in YAML one of your own is module:function."""
    loss_args: Mapping[str, Any] = field(default_factory=dict)
    """The loss's parameters, by name, that are not to have its own defaults, which are the published values."""
    advantage: str | Advantage = "group_zscore"
    """A name of advantages.ADVANTAGES, or a function like those; in YAML one of your own is module:function."""
    advantage_args: Mapping[str, Any] = field(default_factory=dict)
    """The advantage's parameters, by name: `least` of accepted, or those of one of your own."""
    advantage_eps: PositiveOrZero = 1e-6
    """Added to the standard deviation where the advantage divides by one."""
    credit: str = "episode"
    """episode = one advantage for all tokens; turn = one for each turn, from what it and those after it brought;
    branch = one for each branch, against all branches of its group; position = against those of the same place."""
    aggregation: str = "sequence_mean"
    """A name of aggregation.AGGREGATIONS."""
    max_sampled_tokens: Count | None = None
    """The constant aggregation's denominator: the tokens an episode may sample at most. Only for that aggregation."""
    kl_coef: PositiveOrZero = 0.0
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
    reference_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Of the moving average, per step. Only for reference=ema."""
    reference_every: Count | None = None
    """Steps between two copies. Only for reference=periodic."""
    correction: str = "sequence_mask"
    """A name of correction.CORRECTIONS; it applies where the sampler is not the trainer."""
    correction_cap: Annotated[float, Ge(1), Finite] = 3.0
    max_staleness: Literal[0, 1] = 0
    """Updates that a rollout's weights may be behind: 1 = the next rollout runs during the update, from a copy of what
    trains."""
    num_epochs: Count = 1
    """Passes over each batch of samples."""
    mini_batches: Count = 1
    """Optimizer steps per pass; groups stay whole."""
    entropy_coef: PositiveOrZero = 0.0
    """Weight of each token's entropy as a bonus in its loss."""
    top_entropy_fraction: Annotated[float, Gt(0), Le(1)] | None = None
    """Only the tokens with the highest entropy of the optimizer step, this share of all, have a policy loss."""
    drop_zero_variance: bool = False
    """Leave out groups without any advantage. Published is that they stay, with advantage 0: then the fewer groups
    teach, the smaller the loss and its gradient, and KL and entropy see every group. Left out, each group that teaches
    weighs more the fewer they are."""
    mask_truncated: bool = False
    """Do not train on episodes that ran into a limit of tokens; they count in their group's statistics."""
    replay_groups: CountOrZero = 0
    """How many groups that taught something are kept, the newest, to fill up steps that have too few of their own."""

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
        """A loss of the user's own on two tokens, before it costs a rollout."""
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
                f"algorithm.credit={self.credit} with advantage={_name(self.advantage)}: by {self.credit} there are "
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
        return self._loss not in PER_TOKEN

    @property
    def corrects_ratio(self) -> bool:
        """A correction is a factor of a sample's ratio, not of the loss."""
        return self._loss in CORRECTS_RATIO

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
        """The advantages of a step's groups, one per episode; None where the reward is None, or the episode was not
        accepted. Raises TrainingError for misfits from a function of the user's own."""
        takes_eps = isinstance(self.advantage, str) or "eps" in inspect.signature(self.advantage).parameters
        eps = {"eps": self.advantage_eps} if takes_eps else {}
        found = self._advantage(groups, **eps, **self.advantage_args)
        if not isinstance(self.advantage, str):
            _refuse_misfits(_name(self.advantage), groups, found)
        return found

    def turn_advantages(self, groups: Sequence[TurnGroup]) -> list[list[Turns | None]]:
        """Those of a step's groups by turn, from what each turn of each episode brought; None where that is None."""
        return turn_advantages(groups, advantage=_name(self.advantage), eps=self.advantage_eps)

    def branch_advantages(self, groups: Sequence[BranchGroup]) -> list[list[Branches | None]]:
        """Those of a step's groups by branch, from the rewards of each episode's branches; None where that is None."""
        by_position, name = self.credit == "position", _name(self.advantage)
        return branch_advantages(groups, advantage=name, by_position=by_position, eps=self.advantage_eps)

    def token_weights(self, num_tokens: Sequence[int], groups: Sequence[str]) -> list[float]:
        """The weight of each sample's tokens, from the loss-token counts and groups of all samples of the optimizer
        step."""
        return AGGREGATIONS[self.aggregation](num_tokens, groups, self.max_sampled_tokens)

    def token_loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy loss of each token, before its weight."""
        return self._loss(inputs, **self.loss_args)

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


_FUNCTIONS = ("loss", "advantage")
"""Keys that may hold a function."""


_ONLY: Mapping[str, tuple[str, str, str]] = {
    "max_sampled_tokens": ("aggregation", "constant", "the most tokens an episode may sample"),
    "reference_decay": ("reference", "ema", "a number between 0 and 1, such as 0.99"),
    "reference_every": ("reference", "periodic", "a whole number of steps >= 1"),
}
"""key -> (key, its value that the first belongs to, what the first then is)"""


def _require_name(name: str, given: object, known: Sequence[str]) -> None:
    if name in _FUNCTIONS and callable(given):
        return
    if given not in known:
        own = "; a function of your own is module:function" if name in _FUNCTIONS else ""
        raise ConfigError(
            f"algorithm.{name}={given}: allowed are {', '.join(known)}{own}.{did_you_mean(str(given), known)}"
        )


def _name(given: Any) -> str:
    """As the configuration has it."""
    return given if isinstance(given, str) else f"{given.__module__}:{getattr(given, '__qualname__', given)}"


def _shape(found: object) -> str:
    """What it is, in a few words."""
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
                    f"algorithm.advantage={name} gave {value} for a reward of {reward}; a finite number is needed, and "
                    "None where the reward is None"
                )


def _require_only(name: str, given: object, key: str, chosen: str, user: str, needed: str) -> None:
    """`given` belongs to `key`=`user`: needed there, and null everywhere else."""
    if chosen == user and given is None:
        raise ConfigError(f"algorithm.{name}=null with {key}={user}: it is needed there: {needed}")
    if chosen != user and given is not None:
        raise ConfigError(
            f"algorithm.{name}={given} with {key}={chosen}: only {key}={user} uses it; set it to null or choose that "
            f"{key}"
        )
