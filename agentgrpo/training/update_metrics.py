"""What an update is measured by: sums while it runs, one row of metrics at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from agentgrpo.grpo.packing import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """Of one update. None = not computed, which is not zero: no token was forwarded, or there is no such term."""

    loss: float
    """Mean over the optimizer steps taken; 0.0 where none was."""
    lr: float
    gradient_norm: float
    """Before clipping; mean over the optimizer steps taken, 0.0 where none was."""
    kl: float | None
    """Mean of the KL estimate over forwarded loss tokens."""
    entropy: float | None
    """Mean of the next-token distribution's entropy (nats) over forwarded loss tokens."""
    clip_fraction: float | None
    """Share of forwarded loss tokens whose gradient the clip removed or bounded."""
    ratio_max: float | None
    """Largest policy / old probability ratio of a forwarded loss token, or of its sample where the loss uses that."""
    logprob_gap_max: float | None
    """max |trainer - rollout log-prob| of the forwarded loss tokens that this update's own weights have sampled,
    before any of them changed: engine and trainer should agree."""
    stale_logprob_gap_max: float | None
    """The same of those that older weights have sampled: what has been learned since."""
    correction_mean: float | None
    """Mean weight of forwarded loss tokens that makes up for a sampler other than the trainer."""
    correction_clipped_fraction: float | None
    """Share of forwarded loss tokens whose weight the cap changed."""
    staleness_max: int | None
    """Updates that the oldest forwarded sample's weights are behind."""
    tokens_trained: int
    """Loss tokens forwarded per pass; those of skipped zero-advantage samples are not among them."""
    tokens_forwarded: int
    """Input tokens forwarded per pass, each shared prompt once per micro-batch."""
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
        """losses, gradient_norms: of the optimizer steps. batches: of one pass, all processes' alike."""
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
        """By metric tag; what was not computed is absent."""
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
    """Sums over forwarded loss tokens; None where nothing was added."""

    losses: list[float] = field(default_factory=list)
    """The shares of the loss, one per micro-batch."""
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
        """gaps: [m] of some tokens. fresh: [m] bool, see MicroBatch."""
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
        """A sum over tokens as their mean; None where it was not computed."""
        return total / self.num_tokens if self.num_tokens and total is not None else None

    def guarded(self, gradient_norm: float) -> dict[str, float]:
        """Tags of one optimizer step, before it is taken; what was not computed is absent."""
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
