"""The loss of a micro-batch, as a function of the log-probs of a chunk of its tokens.

    weight * (correction * kept * policy loss + kl_coef * KL - entropy_coef * entropy)

Quantities of a whole sample (its ratio, its correction) are constants of the chunk. Unless they are known to be 1, the
log-probs of the whole micro-batch are computed once more before its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.grammar import Support
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.correction import Correction, sample_sums
from agentgrpo.grpo.losses import LossInputs, log_ratio
from agentgrpo.grpo.packing import PackedBatch
from agentgrpo.training.update_metrics import Totals

LEAST_WEIGHT = 1e-8
"""Lower bound of a correction that multiplies a sample's ratio, because 0 has no logarithm."""


class MicroBatch(NamedTuple):
    """A batch on the policy's device with the tensors that stay fixed while the policy is updated, [M] each."""

    batch: PackedBatch
    old_logprobs: Tensor | None
    """Log-probs under the policy before the update; None = on-policy: the policy's own log-probs."""
    ref_logprobs: Tensor | None
    """Log-probs under the reference; None = no KL term in the loss."""
    kept: Tensor | None
    """bool: whether the token has a policy loss; None = all tokens have one."""
    fresh: Tensor | None = None
    """bool: whether the token was sampled from exactly the weights that the update begins with; None = all tokens
    were."""
    support: Support | None = None
    """Tokens that could have been sampled in place of each token; None = all tokens."""


class SampleTerms(NamedTuple):
    """Per-token values, [M], that depend on the whole sample."""

    log_ratio: Tensor
    """Mean log ratio of the sample's tokens; see LossInputs.sequence_log_ratio."""
    num_tokens: Tensor
    correction: Correction | None
    """The correction; None if there is none or each chunk computes its own."""


class Objective:
    """Computes the loss; `sampler_differs`: the algorithm's correction applies."""

    def __init__(self, algorithm: Algorithm, *, sampler_differs: bool) -> None:
        self.algorithm = algorithm
        self._corrects = sampler_differs and algorithm.correction != "none"

    def needs_whole_samples(self, *, stepped: bool) -> bool:
        """Return whether `sample_terms` needs log-probs; `stepped`: the policy may have changed since the old
        log-probs."""
        moved = self.algorithm.has_sample_ratio and stepped
        return moved or (self._corrects and self.algorithm.corrects_samples and self.algorithm.is_on_policy)

    def sample_terms(self, micro: MicroBatch, logprobs: Tensor | None) -> SampleTerms:
        """Compute the sample terms. logprobs: [M] under the policy, without gradient; required if
        `needs_whole_samples`."""
        batch = micro.batch
        counts = torch.tensor(batch.num_tokens, device=batch.weights.device)
        num_tokens = counts.repeat_interleave(counts).to(batch.weights.dtype)
        old = logprobs if micro.old_logprobs is None else micro.old_logprobs
        ratio, correction = torch.zeros_like(batch.weights), None
        if logprobs is not None and old is not None and self.algorithm.has_sample_ratio:
            ratio = sample_sums(log_ratio(logprobs, old), batch.num_tokens) / num_tokens
        if self._corrects and old is not None:
            assert batch.rollout_logprobs is not None, "what was demonstrated has no sampler to correct for"
            correction = self.algorithm.correct(old, batch.rollout_logprobs, batch.num_tokens)
        if correction is not None and self.algorithm.corrects_ratio:
            log_weights = correction.weights.clamp(min=LEAST_WEIGHT).log()
            if not self.algorithm.correction.startswith("sequence"):
                log_weights = sample_sums(log_weights, batch.num_tokens)
            ratio = ratio + log_weights / num_tokens
        return SampleTerms(ratio, num_tokens, correction)

    def chunk_loss(
        self, micro: MicroBatch, terms: SampleTerms, chunk: slice, logprobs: Tensor, totals: Totals
    ) -> Tensor:
        """Return the chunk's share of the loss without the entropy bonus, as a function of its `logprobs`."""
        batch, algorithm = micro.batch, self.algorithm
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs[chunk]
        inputs = LossInputs(logprobs, old, batch.advantages[chunk], terms.log_ratio[chunk], terms.num_tokens[chunk])
        loss, ratio, clipped = algorithm.token_loss(inputs)
        if self._corrects:
            weights, capped = self._correction(micro, terms, chunk, old)
            if not algorithm.corrects_ratio:
                loss = loss * weights
            totals.correction = (totals.correction or 0.0) + float(weights.sum())
            totals.capped += int(capped.sum())
        if micro.kept is not None:
            loss = loss * micro.kept[chunk]
        if micro.ref_logprobs is not None:
            kl = algorithm.token_kl(logprobs, old, micro.ref_logprobs[chunk])
            loss = loss + algorithm.kl_coef * kl
            totals.kl = (totals.kl or 0.0) + float(kl.detach().sum())
        totals.num_tokens += len(logprobs)
        totals.clipped += int(clipped.sum())
        totals.ratio_max = max(totals.ratio_max, float(ratio.max()))
        if batch.rollout_logprobs is not None:
            # Old log-probs are the trainer's before the update, both on-policy and off-policy.
            totals.see_gaps(
                (old - batch.rollout_logprobs[chunk]).abs(), None if micro.fresh is None else micro.fresh[chunk]
            )
        return (batch.weights[chunk] * loss).sum()

    def of_entropy(self, micro: MicroBatch, chunk: slice) -> Tensor | None:
        """Return [m] the derivative of the loss by each token's entropy; None if the loss does not depend on it."""
        return -self.algorithm.entropy_coef * micro.batch.weights[chunk] if self.algorithm.entropy_coef else None

    def _correction(self, micro: MicroBatch, terms: SampleTerms, chunk: slice, old: Tensor) -> Correction:
        if terms.correction is not None:
            return Correction(*(x[chunk] for x in terms.correction))
        assert micro.batch.rollout_logprobs is not None, "what was demonstrated has no sampler to correct for"
        return self.algorithm.correct(old, micro.batch.rollout_logprobs[chunk], (len(old),))


def fresh_tokens(batch: PackedBatch, step: int) -> Tensor:
    """Return [M] bool: MicroBatch.fresh in update `step`."""
    fresh = torch.tensor([s.policy_version is not None and s.policy_version >= step for s in batch.samples])
    return fresh.repeat_interleave(torch.tensor(batch.num_tokens, dtype=torch.long)).to(batch.weights.device)


def highest(entropies: Sequence[Tensor], fraction: float) -> float:
    """Return the entropy threshold that the given share of all tokens reaches, interpolated linearly between the two
    nearest."""
    every = torch.cat([e.double() for e in entropies]).sort().values
    at = (1 - fraction) * (len(every) - 1)
    below, above = every[int(at)], every[min(int(at) + 1, len(every) - 1)]
    return float(below + (above - below) * (at - int(at)))
