"""Policy losses. Every loss is a sum over loss tokens,

    L = sum over samples i, tokens t of  weight_i * f(log-probs of t, advantage of t, ratio of the sample)

`f` is a per-token loss of LOSSES, `weight_i` comes from `grpo.aggregation`. With r = policy / old probability of a
token, s = the geometric mean of r over a sample, w = the product of r over a sample, sg = no gradient:

    clipped           -min(r A, clip(r) A); where A < 0 at most -c A                     GRPO, Dr. GRPO, DAPO, dual clip
    sequence_clipped  the same with s sg[1/p] p in the place of r                        GSPO, LUSPO
    cispo             -sg[clip(r)] A log p                                               MiniMax-M1
    sapo              -4/tau sigmoid(tau (r - 1)) A                                      SAPO
    vespo             -sg[exp(lambda (1 - w)) w^k] A log p                               VESPO
    reinforce         -A log p                                                           RLOO

A sample's ratio is a constant of the loss: the value is exact, and the gradient comes through each token's own
log-prob. So tokens can be worked on in any chunks. M = tokens of a chunk. A new loss is one function and one line of
LOSSES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

LOG_RATIO_CLAMP = 20.0
"""|log ratio| past this counts as this (and has no gradient): exp() stays finite in fp32."""
LOG_WEIGHT_LEAST = math.log(1e-8)
"""A sample's log ratio below this counts as this in `vespo`, as in its authors' code."""


class LossInputs(NamedTuple):
    """What a loss sees of its tokens. Only `logprobs` carries a gradient."""

    logprobs: Tensor
    """[M] of the policy."""
    old_logprobs: Tensor
    """[M] of the policy before the update; on-policy the same numbers."""
    advantages: Tensor
    """[M]"""
    sequence_log_ratio: Tensor
    """[M] mean of the log ratios of all loss tokens of the token's sample; zeros on-policy. A loss with
    `LossSpec.corrects_ratio` gets the correction's log weights added to them."""
    num_tokens: Tensor
    """[M] loss tokens of the token's sample."""


class TokenLoss(NamedTuple):
    loss: Tensor
    """[M] loss of each token before its weight; carries the gradient."""
    ratio: Tensor
    """[M] policy / old probability as the loss uses it: the token's, or its sample's. Detached."""
    clipped: Tensor
    """[M] bool: tokens whose gradient a clip has removed or bounded."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log(policy / old probability), clamped; NaN where it is not finite, lest the clamp should hide that. The old
    log-probs are constants, whatever is passed."""
    difference = logprobs - old_logprobs.detach()
    return difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP) + 0.0 * difference.detach()


def clipped(x: LossInputs, *, clip_low: float, clip_high: float, clip_dual: float | None) -> TokenLoss:
    """PPO's clip (arXiv 1707.06347) per token, as in GRPO (arXiv 2402.03300); clip_high > clip_low is DAPO's
    clip-higher (arXiv 2503.14476, section 3.1), clip_dual the dual clip (arXiv 1912.09729, equation 5)."""
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    return _clipped(ratio, x.advantages, clip_low, clip_high, clip_dual)


def sequence_clipped(x: LossInputs, *, clip_low: float, clip_high: float, clip_dual: float | None) -> TokenLoss:
    """The clip on a sample's geometric mean ratio: GSPO (arXiv 2507.18071, equation 5) in the form of GSPO-token
    (equation 13), which has the same value and gradient and allows an advantage for each token."""
    own = log_ratio(x.logprobs, x.old_logprobs)
    ratio = (x.sequence_log_ratio + (own - own.detach())).exp()
    return _clipped(ratio, x.advantages, clip_low, clip_high, clip_dual)


def _clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_dual: float | None
) -> TokenLoss:
    surrogate = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    objective = surrogate.minimum(bounded)
    held = bounded.detach() < surrogate.detach()
    if clip_dual is not None:
        floor = clip_dual * advantages
        held = held | ((advantages < 0) & (objective.detach() < floor))
        objective = objective.maximum(floor).where(advantages < 0, objective)
    return TokenLoss(-objective, ratio.detach(), held)


def cispo(x: LossInputs, *, clip_low: float, clip_high: float) -> TokenLoss:
    """The clip bounds a token's weight and removes no token's gradient: MiniMax-M1, arXiv 2506.13585, equation 4."""
    ratio = log_ratio(x.logprobs.detach(), x.old_logprobs).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(-weight * x.advantages * x.logprobs, ratio, weight != ratio)


def sapo(x: LossInputs, *, sapo_temperature_positive: float, sapo_temperature_negative: float) -> TokenLoss:
    """A soft gate instead of a clip, its temperature by the sign of the advantage: arXiv 2511.20347, equations 5-6."""
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    positive = x.advantages > 0
    tau = x.advantages.new_full((), sapo_temperature_positive).where(positive, sapo_temperature_negative)
    gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
    return TokenLoss(-gate * x.advantages, ratio.detach(), positive & False)


def vespo(
    x: LossInputs,
    *,
    vespo_k_positive: float,
    vespo_lambda_positive: float,
    vespo_k_negative: float,
    vespo_lambda_negative: float,
) -> TokenLoss:
    """A sample's whole ratio, to the sampler itself where a correction applies, through a gamma-shaped kernel that is 1
    at 1: arXiv 2602.10693."""
    log_w = (x.sequence_log_ratio * x.num_tokens).clamp(LOG_WEIGHT_LEAST, LOG_RATIO_CLAMP)
    w, not_negative = log_w.exp(), x.advantages >= 0
    k = x.advantages.new_full((), vespo_k_positive).where(not_negative, vespo_k_negative)
    scale = x.advantages.new_full((), vespo_lambda_positive).where(not_negative, vespo_lambda_negative)
    kernel = (scale * (1 - w) + k * log_w).exp()
    return TokenLoss(-kernel * x.advantages * x.logprobs, w, not_negative & False)


def reinforce(x: LossInputs) -> TokenLoss:
    """No ratio at all: REINFORCE, as RLOO (arXiv 2402.14740) uses it."""
    ratio = log_ratio(x.logprobs.detach(), x.old_logprobs).exp()
    return TokenLoss(-x.advantages * x.logprobs, ratio, ratio != ratio)


class LossSpec(NamedTuple):
    token_loss: Callable[..., TokenLoss]
    """(LossInputs, **parameters)"""
    published: Mapping[str, float | None]
    """Its parameters, which are keys of the algorithm node, with their published values."""
    per_sample: bool = False
    """Whether it needs the ratio of a whole sample."""
    corrects_ratio: bool = False
    """Whether a correction for the sampler is a factor of that ratio, not of the loss."""


LOSSES: dict[str, LossSpec] = {
    "clipped": LossSpec(clipped, {"clip_low": 0.2, "clip_high": 0.2, "clip_dual": None}),
    # GSPO, section 5.1: the ratio of a whole answer moves orders of magnitude less than that of a token.
    "sequence_clipped": LossSpec(
        sequence_clipped, {"clip_low": 3e-4, "clip_high": 4e-4, "clip_dual": None}, per_sample=True
    ),
    # No lower bound, as in the paper; it gives no number for the upper one: 5, from arXiv 2510.13786.
    "cispo": LossSpec(cispo, {"clip_low": 1.0, "clip_high": 4.0}),
    "sapo": LossSpec(sapo, {"sapo_temperature_positive": 1.0, "sapo_temperature_negative": 1.05}),
    "vespo": LossSpec(
        vespo,
        {
            "vespo_k_positive": 2.0,
            "vespo_lambda_positive": 3.0,
            "vespo_k_negative": 3.0,
            "vespo_lambda_negative": 2.0,
        },
        per_sample=True,
        corrects_ratio=True,
    ),
    "reinforce": LossSpec(reinforce, {}),
}
