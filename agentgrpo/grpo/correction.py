"""Importance weights for a sampler that is not the trainer: another precision or kernel, or older weights.

A token's weight is w = exp(trainer's log-prob before the update - log-prob at sampling). A sample's weight is the
product of w over its loss tokens. Weighted this way, the gradient is the gradient under the trainer's policy again, up
to the cap that bounds the variance. `truncate` = min(w, cap) (Yao et al., "Your efficient RL framework secretly brings
you off-policy RL training", 2025). `mask` = w if w <= cap, else 0 (Liu et al., "When speed kills stability", 2025).
Token weights have less noise, sample weights have no bias. The weights are constants of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.grpo.losses import LOG_RATIO_CLAMP, log_ratio

CORRECTIONS = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


class Correction(NamedTuple):
    weights: Tensor
    """[M] factors for the policy loss of each token."""
    capped: Tensor
    """[M] bool: tokens whose weight was changed by the cap."""


def importance_weights(
    mode: str, cap: float, logprobs: Tensor, rollout_logprobs: Tensor, num_tokens: Sequence[int]
) -> Correction:
    """Return the weights of M tokens: the first num_tokens[0] tokens belong to the first sample, and so on. `mode`: any
    of CORRECTIONS except none."""
    level, way = mode.split("_")
    log_w = log_ratio(logprobs.detach(), rollout_logprobs)
    if level == "sequence":
        log_w = sample_sums(log_w, num_tokens).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    w = log_w.exp()
    capped = w > cap
    return Correction(w.clamp(max=cap) if way == "truncate" else w.masked_fill(capped, 0.0), capped)


def sample_sums(values: Tensor, num_tokens: Sequence[int]) -> Tensor:
    """[M] -> [M]: for each token, the sum over all tokens of its sample."""
    sums = torch.stack([part.sum() for part in torch.split(values, list(num_tokens))])
    return sums.repeat_interleave(torch.tensor(num_tokens, device=values.device))
