"""Metrics of an update: sums during the update, one row of metrics at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from agentgrpo.grpo.packing import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """Metrics of one update. None means "not computed" rather than zero: no token was forwarded, or the term does not
    exist."""

    loss: float
    """Mean over the optimizer steps taken; 0.0 if no step was taken."""
    lr: float
    gradient_norm: float
    """Before clipping; mean over the optimizer steps taken, 0.0 if no step was taken."""
    kl: float | None
    """Mean of the KL estimate over forwarded loss tokens."""
    entropy: float | None
    """Mean of the next-token distribution's entropy (nats) over forwarded loss tokens."""
    clip_fraction: float | None
    """Share of forwarded loss tokens whose gradient the clip removed or bounded."""
    ratio_max: float | None
    """Largest policy / old probability ratio of a forwarded loss token, or of its sample if the loss uses sample
    ratios."""
    logprob_gap_max: float | None
    """max |trainer - rollout log-prob| over the forwarded loss tokens that were sampled from this update's own weights,
    measured before the weights change: engine and trainer should agree."""
    stale_logprob_gap_max: float | None
    """Like `logprob_gap_max`, over tokens that were sampled from older weights: it shows how far the policy has moved
    since."""
    correction_mean: float | None
    """Mean correction weight of the forwarded loss tokens, for a sampler other than the trainer."""
    correction_clipped_fraction: float | None
    """Share of forwarded loss tokens whose weight was changed by the cap."""
    staleness_max: int | None
    """Number of updates by which the weights of the oldest forwarded sample lag behind."""
    tokens_trained: int
    """Loss tokens forwarded per pass, without those of skipped zero-advantage samples."""
    tokens_forwarded: int
    """Input tokens forwarded per pass; each shared prompt counts once per micro-batch."""
    optimizer_steps: int

    @staticmethod
    def of(
        totals: Totals,
        losses: Sequence[float],
        gradient_norms: Sequence[float],
        batches: Sequence[PackedBatch],
        *,
        lr: float,
        step: int,
    ) -> UpdateMetrics:
        """Compute the metrics. losses, gradient_norms: one per optimizer step. batches: those of a single pass, over
        all processes."""
        n, steps = totals.num_tokens, len(losses)
        versions = [s.policy_version for b in batches for s in b.samples if s.policy_version is not None]
        return UpdateMetrics(
            loss=math.fsum(losses) / max(1, steps),
            lr=lr,
            gradient_norm=math.fsum(gradient_norms) / max(1, steps),
            kl=totals.per_token(totals.kl),
            entropy=totals.per_token(totals.entropy),
            clip_fraction=totals.per_token(totals.clipped),
            ratio_max=totals.ratio_max if n else None,
            logprob_gap_max=totals.logprob_gap_max,
            stale_logprob_gap_max=totals.stale_logprob_gap_max,
            correction_mean=totals.per_token(totals.correction),
            correction_clipped_fraction=None if totals.correction is None else totals.per_token(totals.capped),
            staleness_max=step - min(versions) if versions else None,
            tokens_trained=sum(len(b.targets) for b in batches),
            tokens_forwarded=sum(len(b.input_ids) for b in batches),
            optimizer_steps=steps,
        )

    def tags(self) -> dict[str, float]:
        """Return the metrics by tag, without those that were not computed."""
        values = {
            "loss": self.loss,
            "lr": self.lr,
            "gradients/norm": self.gradient_norm,
            "policy/kl": self.kl,
            "policy/entropy": self.entropy,
            "policy/clip_fraction": self.clip_fraction,
            "policy/ratio_max": self.ratio_max,
            "policy/logprob_gap_max": self.logprob_gap_max,
            "policy/stale_logprob_gap_max": self.stale_logprob_gap_max,
            "policy/correction_mean": self.correction_mean,
            "policy/correction_clipped_fraction": self.correction_clipped_fraction,
            "policy/staleness_max": self.staleness_max,
            "tokens/trained": self.tokens_trained,
            "tokens/forwarded": self.tokens_forwarded,
            "optimizer_steps": self.optimizer_steps,
        }
        return {tag: float(value) for tag, value in values.items() if value is not None}


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over forwarded loss tokens; None if nothing was added."""

    losses: list[float] = field(default_factory=list)
    """One share of the loss per micro-batch."""
    num_tokens: int = 0
    kl: float | None = None
    entropy: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    logprob_gap_max: float | None = None
    stale_logprob_gap_max: float | None = None
    correction: float | None = None
    capped: int = 0

    @property
    def loss(self) -> float:
        return math.fsum(self.losses)

    def add(self, other: Totals) -> None:
        self.losses += other.losses
        self.num_tokens += other.num_tokens
        self.kl = _sum(self.kl, other.kl)
        self.entropy += other.entropy
        self.clipped += other.clipped
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.logprob_gap_max = _max(self.logprob_gap_max, other.logprob_gap_max)
        self.stale_logprob_gap_max = _max(self.stale_logprob_gap_max, other.stale_logprob_gap_max)
        self.correction = _sum(self.correction, other.correction)
        self.capped += other.capped

    def see_gaps(self, gaps: Tensor, fresh: Tensor | None) -> None:
        """Include the log-prob gaps of some tokens in the maxima. gaps: [m]. fresh: [m] bool, see MicroBatch."""
        if fresh is None:
            self.logprob_gap_max = _max(self.logprob_gap_max, float(gaps.max()))
            return
        for is_fresh, part in ((True, gaps[fresh]), (False, gaps[~fresh])):
            if len(part) and is_fresh:
                self.logprob_gap_max = _max(self.logprob_gap_max, float(part.max()))
            elif len(part):
                self.stale_logprob_gap_max = _max(self.stale_logprob_gap_max, float(part.max()))

    @staticmethod
    def of(parts: Iterable[Totals]) -> Totals:
        total = Totals()
        for part in parts:
            total.add(part)
        return total

    def per_token(self, total: float | None) -> float | None:
        """Return a sum over tokens as the mean per token; None if it was not computed."""
        return total / self.num_tokens if self.num_tokens and total is not None else None

    def guarded(self, gradient_norm: float) -> dict[str, float]:
        """Return the tags of one optimizer step before it is taken, without those that were not computed."""
        values = {
            "loss": self.loss,
            "gradients/norm": gradient_norm,
            "policy/kl": self.per_token(self.kl),
            "policy/entropy": self.per_token(self.entropy),
            "policy/clip_fraction": self.per_token(self.clipped),
            "policy/ratio_max": self.ratio_max,
            "policy/logprob_gap_max": self.logprob_gap_max,
            "policy/stale_logprob_gap_max": self.stale_logprob_gap_max,
        }
        return {tag: value for tag, value in values.items() if value is not None}


def _max(a: float | None, b: float | None) -> float | None:
    return a if b is None else max(a or 0.0, b)


def _sum(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b
