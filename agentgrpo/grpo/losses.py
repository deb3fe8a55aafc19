"""Policy losses. Every loss is a sum over loss tokens,

    L = sum over samples i, tokens t of  weight_i * f(log-probs of t, advantage of t, ratio of the sample)

`f` is a per-token loss of LOSSES, `weight_i` comes from `grpo.aggregation`. With r = policy / old probability of a
token, s = the geometric mean of r over a sample, w = the product of r over a sample, sg = no gradient:

    clipped           -min(r A, clip(r) A); at most -c A if A < 0                        GRPO, Dr. GRPO, DAPO, dual clip
    sequence_clipped  like clipped, with s sg[1/p] p in place of r                       GSPO, LUSPO
    cispo             -sg[clip(r)] A log p                                               MiniMax-M1
    sapo              -4/tau sigmoid(tau (r - 1)) A                                      SAPO
    vespo             -sg[exp(lambda (1 - w)) w^k] A log p                               VESPO
    reinforce         -A log p                                                           RLOO

A sample's ratio is a constant of the loss: the value is exact, and the gradient flows through each token's own
log-prob. So tokens can be processed in chunks of any size. M = tokens of a chunk.

To add a loss, write one function and add it to LOSSES. Its keyword arguments are the parameters `algorithm.loss_args`;
their defaults are the published values, and their annotations define the allowed values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

from annotated_types import Gt, Le
from torch import Tensor

from agentgrpo.config.values import Finite, Positive

ClipLow = Annotated[float, Gt(0), Le(1)]
"""The ratio is clipped below 1 - clip_low; 1 = no lower bound."""
ClipDual = Annotated[float, Gt(1), Finite]
"""Upper bound of the ratio for tokens with a negative advantage."""
LOG_RATIO_CLAMP = 20.0
"""Bound of |log ratio|; beyond it the gradient is zero. It keeps exp() finite in fp32."""
LOG_WEIGHT_LEAST = math.log(1e-8)
"""Lower bound of a sample's log ratio in `vespo`, as in the code of its authors."""


class LossInputs(NamedTuple):
    """The inputs of a loss. Only `logprobs` carries a gradient."""

    logprobs: Tensor
    """[M] log-probs under the policy."""
    old_logprobs: Tensor
    """[M] log-probs under the policy before the update; equal to `logprobs` on-policy."""
    advantages: Tensor
    """[M]"""
    sequence_log_ratio: Tensor
    """[M] mean log ratio over all loss tokens of the token's sample; zeros on-policy and for a `per_token` loss. For a
    loss that `corrects_ratio`, the log weights of the correction are added."""
    num_tokens: Tensor
    """[M] number of loss tokens of the token's sample."""


class TokenLoss(NamedTuple):
    loss: Tensor
    """[M] loss of each token before weighting; carries the gradient."""
    ratio: Tensor
    """[M] policy / old probability as the loss uses it, of the token or of its sample. Detached."""
    clipped: Tensor
    """[M] bool: tokens whose gradient was removed or bounded by a clip."""


Loss: TypeAlias = Callable[..., TokenLoss]
"""(LossInputs, **parameters)"""
L = TypeVar("L", bound=Loss)
PER_TOKEN: set[Loss] = set()
"""Losses marked by `per_token`."""
CORRECTS_RATIO: set[Loss] = set()
"""Losses marked by `corrects_ratio`."""


def per_token(loss: L) -> L:
    """Mark a loss that does not read `sequence_log_ratio`, which off-policy costs a forward pass over the whole
    batch."""
    PER_TOKEN.add(loss)
    return loss


def corrects_ratio(loss: L) -> L:
    """Mark a loss in which the sampler correction multiplies the sample's ratio instead of the loss."""
    CORRECTS_RATIO.add(loss)
    return loss


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return log(policy / old probability), clamped; NaN if it is not finite, so that the clamp cannot hide it. The old
    log-probs are always treated as constants."""
    difference = logprobs - old_logprobs.detach()
    return difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP) + 0.0 * difference.detach()


@per_token
def clipped(
    x: LossInputs, *, clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, clip_dual: ClipDual | None = None
) -> TokenLoss:
    """PPO's clip (arXiv 1707.06347) per token, as in GRPO (arXiv 2402.03300). With clip_high > clip_low it is DAPO's
    clip-higher (arXiv 2503.14476, section 3.1); clip_dual is the dual clip (arXiv 1912.09729, equation 5)."""
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    return _clipped(ratio, x.advantages, clip_low, clip_high, clip_dual)


def sequence_clipped(
    x: LossInputs, *, clip_low: ClipLow = 3e-4, clip_high: Positive = 4e-4, clip_dual: ClipDual | None = None
) -> TokenLoss:
    """The clip on a sample's geometric mean ratio: GSPO (arXiv 2507.18071, equation 5) in the form of GSPO-token
    (equation 13), which has the same value and gradient and allows one advantage per token. The ratio of a whole answer
    varies by orders of magnitude less than the ratio of a token, so its clip range is smaller as well (section 5.1)."""
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


@per_token
def cispo(x: LossInputs, *, clip_low: ClipLow = 1.0, clip_high: Positive = 4.0) -> TokenLoss:
    """The clip bounds a token's weight and removes no token's gradient: MiniMax-M1, arXiv 2506.13585, equation 4. There
    is no lower bound, as in the paper. The paper gives no value for the upper bound; 5 is from arXiv 2510.13786."""
    ratio = log_ratio(x.logprobs.detach(), x.old_logprobs).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(-weight * x.advantages * x.logprobs, ratio, weight != ratio)


@per_token
def sapo(x: LossInputs, *, temperature_positive: Positive = 1.0, temperature_negative: Positive = 1.05) -> TokenLoss:
    """A soft gate instead of a clip; its temperature depends on the sign of the advantage: arXiv 2511.20347, equations
    5-6."""
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    positive = x.advantages > 0
    tau = x.advantages.new_full((), temperature_positive).where(positive, temperature_negative)
    gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
    return TokenLoss(-gate * x.advantages, ratio.detach(), positive & False)


@corrects_ratio
def vespo(
    x: LossInputs,
    *,
    k_positive: Positive = 2.0,
    lambda_positive: Positive = 3.0,
    k_negative: Positive = 3.0,
    lambda_negative: Positive = 2.0,
) -> TokenLoss:
    """A gamma-shaped kernel, equal to 1 at 1, of the ratio of a whole sample: arXiv 2602.10693. If a correction
    applies, the ratio is policy / sampler instead of policy / old policy."""
    log_w = (x.sequence_log_ratio * x.num_tokens).clamp(LOG_WEIGHT_LEAST, LOG_RATIO_CLAMP)
    w, not_negative = log_w.exp(), x.advantages >= 0
    k = x.advantages.new_full((), k_positive).where(not_negative, k_negative)
    scale = x.advantages.new_full((), lambda_positive).where(not_negative, lambda_negative)
    kernel = (scale * (1 - w) + k * log_w).exp()
    return TokenLoss(-kernel * x.advantages * x.logprobs, w, not_negative & False)


@per_token
def reinforce(x: LossInputs) -> TokenLoss:
    """REINFORCE without a ratio, as used by RLOO (arXiv 2402.14740)."""
    ratio = log_ratio(x.logprobs.detach(), x.old_logprobs).exp()
    return TokenLoss(-x.advantages * x.logprobs, ratio, ratio != ratio)


LOSSES: dict[str, Loss] = {
    "clipped": clipped,
    "sequence_clipped": sequence_clipped,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "reinforce": reinforce,
}
