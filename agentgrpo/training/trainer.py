"""The training step: samples in, one update of the policy out.

    samples --pack--> micro-batches --forward--> hidden states at loss tokens --head, in chunks--> token losses
            --backward--> gradients --check, clip, step--> new weights

An update is atomic: if it is refused or fails, weights and optimizer are as before, bit for bit, and no gradient stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from agentgrpo.errors import ConfigError, TrainingError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.packing import PackedBatch, pack
from agentgrpo.stages import Clock, NoClock, Stage
from agentgrpo.training.head import CHUNK_TOKENS
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.precision import autocast
from agentgrpo.types import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """Of one update. None = not computed, which is not zero: no token was forwarded, or there is no KL term."""

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
    """Share of forwarded loss tokens whose gradient the clip removed."""
    ratio_max: float | None
    """Largest policy / old probability ratio of a forwarded loss token."""
    logprob_gap_max: float | None
    """max |trainer - rollout log-prob| of the forwarded loss tokens, before any weight changed."""
    tokens_trained: int
    """Loss tokens forwarded per pass; those of skipped zero-advantage samples are not among them."""
    tokens_forwarded: int
    """Input tokens forwarded per pass, each shared prompt once per micro-batch."""
    optimizer_steps: int

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
            "tokens/trained": self.tokens_trained,
            "tokens/forwarded": self.tokens_forwarded,
            "optimizer_steps": self.optimizer_steps,
        }
        return {tag: float(value) for tag, value in values.items() if value is not None}


class _MicroBatch(NamedTuple):
    """A batch on the policy's device with the log-probs [M] that stay fixed while the policy is stepped."""

    batch: PackedBatch
    old_logprobs: Tensor | None
    """None = on-policy: the policy's own."""
    ref_logprobs: Tensor | None
    """None = no KL term."""


@dataclass(slots=True, kw_only=True)
class _Totals:
    """Sums over every forwarded loss token of an update."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    logprob_gap_max: float = 0.0


def fitting_tokens(config: PretrainedConfig, head_chunk_tokens: int) -> int:
    """Input tokens of a micro-batch such that what its forward pass keeps for the backward pass and a chunk's logits
    take somewhat more than a GiB in fp32; 1024 at least, below which the products get narrow, and 4096 at most, beyond
    which nothing is gained. Of a token one decoder layer keeps 18 vectors of hidden size and 6 of the feed-forward's
    (measured, Qwen2 with plain products)."""
    model = config.get_text_config()
    per_token: int = 4 * model.num_hidden_layers * (18 * model.hidden_size + 6 * model.intermediate_size)
    logits: int = 4 * head_chunk_tokens * model.vocab_size
    return max(1024, min(4096, (9 * 2**27 - logits) // per_token))


class Trainer:
    """`update` takes the samples of one step through `algorithm`.

    reference: frozen weights, given if and only if the algorithm has a KL term (reference.frozen_reference).
    temperature: that of the rollout; log-probs are those of softmax(logits / temperature), as they were sampled.
    tokens_per_micro_batch: input tokens of one forward pass, None = `fitting_tokens`. head_chunk_tokens: loss tokens
    whose logits exist at a time, head_chunk_tokens * vocabulary numbers. Neither changes the result beyond rounding.
    mixed_precision: no | bf16 = the products of forward and backward in bfloat16; log-probs, losses, gradients and
    weights stay as they are. activation_checkpointing: see training.recompute.
    total_steps: length of the learning-rate schedule, in updates.
    clock: shares the time of an update out among pack, forward, backward and optimizer.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Policy | None,
        optimizer: AdamW,
        algorithm: Algorithm,
        total_steps: int,
        temperature: float = 1.0,
        tokens_per_micro_batch: int | None = None,
        head_chunk_tokens: int = CHUNK_TOKENS,
        mixed_precision: str = "no",
        activation_checkpointing: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if (reference is not None) != algorithm.needs_reference:
            raise ConfigError(
                f"kl_coef={algorithm.kl_coef} {'without' if reference is None else 'with'} a reference: a reference is "
                f"given if and only if kl_coef > 0"
            )
        if not 0 < temperature < math.inf:
            raise ConfigError(
                f"temperature={temperature}: training needs the finite temperature > 0 that episodes are sampled with"
            )
        tokens = tokens_per_micro_batch
        if tokens is None:
            tokens = fitting_tokens(policy.model.config, head_chunk_tokens)
        for name, value in (
            ("tokens_per_micro_batch", tokens),
            ("head_chunk_tokens", head_chunk_tokens),
            ("total_steps", total_steps),
        ):
            if value < 1:
                raise ConfigError(f"{name}={value}: allowed is a whole number >= 1")
        self.policy = policy
        self.reference = reference
        self.optimizer = optimizer
        self.algorithm = algorithm
        self.total_steps = total_steps
        self.temperature = temperature
        self.tokens_per_micro_batch = tokens
        self.head_chunk_tokens = head_chunk_tokens
        self.activation_checkpointing = activation_checkpointing
        self.clock = clock or NoClock()
        self._forward_precision = partial(autocast, mixed_precision, policy.device)
        self._forward_precision()  # a name that does not exist is an error of construction

    def update(self, samples: Sequence[TrainingSample], *, step: int) -> UpdateMetrics:
        """One update, the 0-based `step` of the run: `num_epochs` passes of `mini_batches` optimizer steps.

        A mini-batch without a sample that has a gradient takes no optimizer step; the update counts as a step all the
        same, with unchanged weights where that holds for all of them. Raises TrainingError naming the step for an
        advantage, rollout log-prob, loss or gradient norm that is not finite.
        """
        _refuse_non_finite_samples(samples, step)
        with self._atomic():
            parts = _split_groups(samples, self.algorithm.mini_batches)
            mini_batches = [m for m in map(self._micro_batches, parts) if m]
            lr = self.optimizer.learning_rate(step, self.total_steps)
            totals = _Totals()
            for epoch in range(self.algorithm.num_epochs):
                for number, mini_batch in enumerate(mini_batches):
                    where = f"step {step}, epoch {epoch}, mini-batch {number}"
                    self._optimizer_step(mini_batch, totals, lr, where)
        batches = [micro.batch for mini_batch in mini_batches for micro in mini_batch]
        return self._metrics(batches, totals, lr)

    def _micro_batches(self, samples: Sequence[TrainingSample]) -> list[_MicroBatch]:
        with self.clock.stage(Stage.PACK):
            batches = pack(
                samples,
                tokens_per_batch=self.tokens_per_micro_batch,
                token_weights=self.algorithm.token_weights,
                skip_zero_advantage=self.algorithm.skips_zero_advantage,
            )
            return [self._micro_batch(b.to(self.policy.device, self.policy.dtype)) for b in batches]

    def _micro_batch(self, batch: PackedBatch) -> _MicroBatch:
        return _MicroBatch(
            batch=batch,
            old_logprobs=None if self.algorithm.is_on_policy else self._logprobs(self.policy, batch),
            ref_logprobs=None if self.reference is None else self._logprobs(self.reference, batch),
        )

    def _logprobs(self, policy: Policy, batch: PackedBatch) -> Tensor:
        with self.clock.stage(Stage.FORWARD), self._forward_precision():
            return policy.batch_logprobs(batch, temperature=self.temperature, chunk_tokens=self.head_chunk_tokens)

    def _optimizer_step(self, mini_batch: Sequence[_MicroBatch], totals: _Totals, lr: float, where: str) -> None:
        loss = math.fsum(self._backward(micro, totals) for micro in mini_batch)
        if not math.isfinite(loss):
            raise TrainingError(f"{where}: the loss is {loss}; only finite losses are stepped; nothing was changed")
        with self.clock.stage(Stage.OPTIMIZER):
            norm = self.optimizer.gradient_norm()
            if not math.isfinite(norm):
                raise TrainingError(
                    f"{where}: the gradient norm is {norm}; only finite ones are stepped; nothing was changed"
                )
            self.optimizer.step(lr=lr, gradient_norm=norm)
        totals.losses.append(loss)
        totals.gradient_norms.append(norm)

    def _backward(self, micro: _MicroBatch, totals: _Totals) -> float:
        """Add the micro-batch's gradient; returns its share of the loss.

        The head's gradient is taken chunk by chunk while its logits are there; what remains is the gradient of the
        hidden states, which goes back through the model in one pass.
        """
        with self.clock.stage(Stage.FORWARD), self._forward_precision():
            states = self.policy.hidden_states(micro.batch, recompute=self.activation_checkpointing)
            head = self.policy.head(temperature=self.temperature, chunk_tokens=self.head_chunk_tokens)
        gradient = torch.empty_like(states)
        loss = 0.0
        for chunk in head.chunks(len(states)):
            with self.clock.stage(Stage.FORWARD):
                scores = head.score(states[chunk], micro.batch.targets[chunk])
            with self.clock.stage(Stage.BACKWARD):
                logprobs = scores.logprobs.requires_grad_()
                chunk_loss = self._chunk_loss(logprobs, micro, chunk, totals)
                totals.entropy += float(scores.entropy.sum())
                [of_logprobs] = torch.autograd.grad(chunk_loss, logprobs)
                gradient[chunk] = head.backward(of_logprobs)
                loss += chunk_loss.item()
        with self.clock.stage(Stage.BACKWARD):
            torch.autograd.backward(states, gradient)
        return loss

    def _chunk_loss(self, logprobs: Tensor, micro: _MicroBatch, chunk: slice, totals: _Totals) -> Tensor:
        """The chunk's share of the loss, a function of its log-probs."""
        batch, algorithm = micro.batch, self.algorithm
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs[chunk]
        loss, ratio, clipped = algorithm.token_loss(logprobs, old, batch.advantages[chunk])
        if micro.ref_logprobs is not None:
            kl = algorithm.token_kl(logprobs, micro.ref_logprobs[chunk])
            loss = loss + algorithm.kl_coef * kl
            totals.kl += float(kl.detach().sum())
        totals.num_tokens += len(logprobs)
        totals.clipped += int(clipped.sum())
        totals.ratio_max = max(totals.ratio_max, float(ratio.max()))
        # Old log-probs are the trainer's before the update, on-policy and off-policy alike.
        totals.logprob_gap_max = max(totals.logprob_gap_max, float((old - batch.rollout_logprobs[chunk]).abs().max()))
        return (batch.weights[chunk] * loss).sum()

    def _metrics(self, batches: Sequence[PackedBatch], totals: _Totals, lr: float) -> UpdateMetrics:
        n, steps = totals.num_tokens, len(totals.losses)
        return UpdateMetrics(
            loss=math.fsum(totals.losses) / max(1, steps),
            lr=lr,
            gradient_norm=math.fsum(totals.gradient_norms) / max(1, steps),
            kl=totals.kl / n if n and self.reference is not None else None,
            entropy=totals.entropy / n if n else None,
            clip_fraction=totals.clipped / n if n else None,
            ratio_max=totals.ratio_max if n else None,
            logprob_gap_max=totals.logprob_gap_max if n else None,
            tokens_trained=sum(len(b.targets) for b in batches),
            tokens_forwarded=sum(len(b.input_ids) for b in batches),
            optimizer_steps=steps,
        )

    @contextmanager
    def _atomic(self) -> Iterator[None]:
        """Clear all gradients on the way in and out; if the block fails, undo the optimizer steps it has taken."""
        self.optimizer.zero_grad()
        live = [*self.policy.model.parameters(), *self.optimizer.state_tensors().values()]
        # A single optimizer step is the last thing that happens: there is nothing to undo before it.
        before = [] if self.algorithm.is_on_policy else [x.detach().clone() for x in live]
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for tensor, saved in zip(live, before, strict=bool(before)):
                    tensor.copy_(saved)
            raise
        finally:
            self.optimizer.zero_grad()


def _refuse_non_finite_samples(samples: Sequence[TrainingSample], step: int) -> None:
    for s in samples:
        where = f"step {step}, sample {s.group_id}/{s.sample_index}"
        if odd := [a for a in s.token_advantages if not math.isfinite(a)]:
            raise TrainingError(f"{where}: its advantage is {odd[0]}; only finite ones are trained on")
        bad = [x for x, m in zip(s.rollout_logprobs, s.loss_mask, strict=True) if m and not math.isfinite(x)]
        if bad:
            raise TrainingError(f"{where}: a rollout log-prob is {bad[0]}; only finite ones are trained on")


def _split_groups(samples: Sequence[TrainingSample], parts: int) -> list[list[TrainingSample]]:
    """Whole groups dealt out in turn, in the order of their ids, so that shared prompts stay shared."""
    order = {group: i for i, group in enumerate(sorted({s.group_id for s in samples}))}
    return [[s for s in samples if order[s.group_id] % parts == part] for part in range(parts)]
