"""Policy losses. Every loss is a sum over loss tokens,

    L = sum over samples i, tokens t of  weight_i * f(logprob, old_logprob, advantage_i)

`f` is a per-token loss of LOSSES, `weight_i` comes from AGGREGATIONS. The weights hold every denominator: they are
computed from the loss-token counts of all samples of an optimizer step, before the first backward, so neither packing
nor the split into micro-batches nor the skipping of zero-advantage samples can change the gradient.

Shapes: M = loss tokens of one batch. A new loss is one function and one line of LOSSES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

LOG_RATIO_CLAMP = 20.0
"""|log ratio| past this counts as this (and has no gradient): exp() stays finite in fp32."""


class TokenLoss(NamedTuple):
    loss: Tensor
    """[M] loss of each token before its weight; carries the gradient."""
    ratio: Tensor
    """[M] policy / old probability, detached."""
    clipped: Tensor
    """[M] bool: tokens whose gradient the clip has removed."""


class PolicyLoss(Protocol):
    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
    ) -> TokenLoss: ...


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprob - old_logprob), all [M].

    PPO's clip (arXiv 1707.06347) per token, as in GRPO; clip_high > clip_low is DAPO's clip-higher (arXiv 2503.14476,
    section 3.1). The old log-probs are constants, whatever is passed.
    """
    ratio = (logprobs - old_logprobs.detach()).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()
    surrogate = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenLoss(-surrogate.minimum(bounded), ratio.detach(), bounded.detach() < surrogate.detach())


class LossSpec(NamedTuple):
    token_loss: PolicyLoss
    aggregation: str
    """The paper's own aggregation: the default of `Algorithm.aggregation`."""


LOSSES: dict[str, LossSpec] = {
    # GRPO, arXiv 2402.03300, equation 3: every answer weighs the same, each of its tokens 1/length.
    "grpo": LossSpec(clipped_surrogate, "sequence_mean"),
    # Dr. GRPO, arXiv 2503.20783, section 3.2: no division by length; goes with the group_mean advantage.
    "dr_grpo": LossSpec(clipped_surrogate, "constant"),
    # DAPO, arXiv 2503.14476, equation 8: every token weighs the same; goes with clip_high > clip_low.
    "dapo": LossSpec(clipped_surrogate, "token_mean"),
}

Aggregation = Callable[[Sequence[int], int | None], list[float]]
"""(loss tokens of each sample, all > 0; max_sampled_tokens) -> the weight of each sample's tokens."""


def token_mean(num_tokens: Sequence[int], max_sampled_tokens: int | None = None) -> list[float]:
    """1 / (loss tokens of all samples)."""
    total = sum(num_tokens)
    return [1 / total for _ in num_tokens]


def sequence_mean(num_tokens: Sequence[int], max_sampled_tokens: int | None = None) -> list[float]:
    """1 / (samples * loss tokens of the sample)."""
    return [1 / (len(num_tokens) * n) for n in num_tokens]


def constant(num_tokens: Sequence[int], max_sampled_tokens: int | None = None) -> list[float]:
    """1 / (samples * max_sampled_tokens): a sample's weight does not depend on its length."""
    if not max_sampled_tokens:
        raise ValueError("the constant aggregation needs max_sampled_tokens >= 1")
    return [1 / (len(num_tokens) * max_sampled_tokens) for _ in num_tokens]


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
}
