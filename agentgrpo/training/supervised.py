"""Supervised training for a warm start: weighted next-token prediction over complete episodes.

Rows of similar length are padded on the right and go through the model's own causal forward without a mask, because no
real token can see the padding. (Measured against the packed forward of `attention`: the rows of a bucket share no
prompt and little padding is left, so packing only adds its gathers.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from agentgrpo.core.errors import ConfigError, DataError, TrainingError
from agentgrpo.training.optimizer import Muon
from agentgrpo.training.policy import Policy

BUCKET_JITTER = 8
"""Tokens by which row lengths are randomly perturbed before sorting, so that batches mix lengths a little."""
AVERAGED_STEPS = 20
"""Number of last steps over which the final loss is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedSample:
    """A complete episode, or one context of several. weights[i] >= 0 weighs -log p(token_ids[i] | token_ids[:i]); 0 =
    no loss on that token. The weight of the first token is not used, because nothing precedes it."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    phase: int = 0
    """Samples of lower phases come first."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.weights):
            raise DataError(
                f"{len(self.token_ids)} token ids but {len(self.weights)} weights; they must be equally long"
            )
        if not all(0 <= w < math.inf for w in self.weights):
            raise DataError("a weight is negative or not finite; allowed are finite numbers >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedStep:
    """The argument of `on_step` after each step."""

    step: int
    total_steps: int
    loss: float
    """sum(w * nll) / sum(w) of the batch, before the step."""
    lr_scale: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedMetrics:
    num_steps: int
    num_tokens: int
    first_loss: float
    final_loss: float
    """Mean of the last 20 steps."""


def train_supervised(
    policy: Policy,
    samples: Sequence[WeightedSample],
    *,
    seed: int,
    tokens_per_batch: int = 1024,
    lr: float = 3e-3,
    muon_lr: float | None = 0.012,
    epochs: int = 1,
    warmup_steps: int = 20,
    decay_fraction: float = 0.6,
    max_grad_norm: float = 1.0,
    on_step: Callable[[SupervisedStep], None] | None = None,
) -> SupervisedMetrics:
    """Train `epochs` times on all samples, phase after phase; a function of weights, samples and `seed` alone.

    Muon (`muon_lr`) trains the hidden matrices, AdamW (`lr`) embeddings and norms; with muon_lr=None AdamW trains
    everything, as suits a model that is already trained. Frozen parameters stay frozen. Both rates rise over
    `warmup_steps`, stay constant, and fall linearly to 0 over the last `decay_fraction` of the steps. tokens_per_batch:
    rows times the longest row. Samples without a weighted token are left out. Raises DataError if no sample is left,
    and TrainingError naming the step for a loss or gradient norm that is not finite (that step is not taken).
    """
    _check(tokens_per_batch, lr, muon_lr, epochs, warmup_steps, decay_fraction, max_grad_norm)
    used = [s for s in samples if any(s.weights[1:])]
    if not used:
        raise DataError("no sample has a weighted token after its first; give at least one")
    rng = random.Random(seed)
    phases = sorted({s.phase for s in used})
    batches = [
        batch
        for phase in phases
        for _ in range(epochs)
        for batch in _bucketed([s for s in used if s.phase == phase], tokens_per_batch, rng)
    ]
    optimizers = _optimizers(policy, lr, muon_lr)
    losses: list[float] = []
    num_tokens = 0
    for step, batch in enumerate(batches):
        scale = _lr_scale(step, len(batches), warmup_steps, decay_fraction)
        losses.append(_step(policy, batch, optimizers, scale, max_grad_norm, step))
        batch_tokens = sum(len(s.token_ids) for s in batch)
        num_tokens += batch_tokens
        if on_step is not None:
            on_step(
                SupervisedStep(
                    step=step, total_steps=len(batches), loss=losses[-1], lr_scale=scale, num_tokens=batch_tokens
                )
            )
    last = losses[-AVERAGED_STEPS:]
    return SupervisedMetrics(
        num_steps=len(losses), num_tokens=num_tokens, first_loss=losses[0], final_loss=math.fsum(last) / len(last)
    )


def _step(
    policy: Policy,
    batch: Sequence[WeightedSample],
    optimizers: Sequence[torch.optim.Optimizer],
    lr_scale: float,
    max_grad_norm: float,
    step: int,
) -> float:
    loss = _loss(policy, batch)
    torch.autograd.backward(loss)
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_grad_norm)
    if not (loss.isfinite() and norm.isfinite()):
        policy.model.zero_grad()
        raise TrainingError(
            f"supervised step {step}: loss {loss.item()}, gradient norm {norm.item()}; both must be finite"
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_scale
        optimizer.step()
    policy.model.zero_grad()
    return loss.item()


def _loss(policy: Policy, batch: Sequence[WeightedSample]) -> Tensor:
    """sum(w * nll) / sum(w) over the batch; the head is applied only at positions with a weight."""
    longest = max(len(s.token_ids) for s in batch)
    ids = torch.tensor([(*s.token_ids, *(0,) * (longest - len(s.token_ids))) for s in batch], device=policy.device)
    weights = torch.tensor([(*s.weights, *(0.0,) * (longest - len(s.weights))) for s in batch], device=policy.device)
    states = policy.model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    at = weights[:, 1:].flatten().nonzero()[:, 0]
    logits = policy.model.get_output_embeddings()(states.flatten(0, 1).index_select(0, at))
    weight = weights[:, 1:].flatten()[at].to(policy.dtype)
    logits = policy.vocabulary.within(logits.to(policy.dtype))
    nll = cross_entropy(logits, ids[:, 1:].flatten()[at], reduction="none")
    return (nll @ weight) / weight.sum()


def _bucketed(
    samples: Sequence[WeightedSample], tokens_per_batch: int, rng: random.Random
) -> list[list[WeightedSample]]:
    """Return batches of similar lengths with at most `tokens_per_batch` padded tokens, in random order."""
    blurred = [(len(s.token_ids) + rng.random() * BUCKET_JITTER, i) for i, s in enumerate(samples)]
    batches: list[list[WeightedSample]] = []
    longest = 0
    for _, i in sorted(blurred):
        longest = max(longest, len(samples[i].token_ids))
        if not batches or longest * (len(batches[-1]) + 1) > tokens_per_batch:
            batches.append([])
            longest = len(samples[i].token_ids)
        batches[-1].append(samples[i])
    rng.shuffle(batches)
    return batches


def _optimizers(policy: Policy, lr: float, muon_lr: float | None) -> list[torch.optim.Optimizer]:
    model = policy.model
    embeddings = {id(m.weight) for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    trained = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in trained if muon_lr is not None and p.ndim == 2 and id(p) not in embeddings]
    by_muon = {id(p) for p in hidden}
    others = [p for p in trained if id(p) not in by_muon]
    found: list[torch.optim.Optimizer] = []
    if muon_lr is not None:
        found.append(Muon([{"params": hidden, "peak_lr": muon_lr}], lr=muon_lr))
    groups = [{"params": others, "peak_lr": lr}]
    return [*found, torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


def _lr_scale(step: int, total_steps: int, warmup_steps: int, decay_fraction: float) -> float:
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return warmup * min(1.0, (1 - step / total_steps) / decay_fraction)


def _check(
    tokens_per_batch: int,
    lr: float,
    muon_lr: float | None,
    epochs: int,
    warmup_steps: int,
    decay_fraction: float,
    max_grad_norm: float,
) -> None:
    for name, given, allowed, ok in (
        ("tokens_per_batch", tokens_per_batch, "a whole number >= 1", tokens_per_batch >= 1),
        ("lr", lr, "a finite number > 0", 0 < lr < math.inf),
        ("muon_lr", muon_lr, "a finite number > 0, or None", muon_lr is None or 0 < muon_lr < math.inf),
        ("epochs", epochs, "a whole number >= 1", epochs >= 1),
        ("warmup_steps", warmup_steps, "a whole number >= 0", warmup_steps >= 0),
        ("decay_fraction", decay_fraction, "0 < decay_fraction <= 1", 0 < decay_fraction <= 1),
        ("max_grad_norm", max_grad_norm, "a number > 0", max_grad_norm > 0),
    ):
        if not ok:
            raise ConfigError(f"warm start: {name}={given}: allowed is {allowed}")
