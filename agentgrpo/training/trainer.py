"""The training step: samples in, one update of the policy out.

    samples --pack--> micro-batches --forward--> hidden states at loss tokens --head, in chunks--> token losses
            --backward--> gradients --check, clip, step--> new weights

An update is atomic: if it is refused or fails, weights and optimizer are restored bit for bit, and no gradient remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress

import torch
from torch import Tensor

from agentgrpo.core.errors import ConfigError, EngineError, TrainingError
from agentgrpo.core.stages import Clock, NoClock, Stage
from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.grammar import Support
from agentgrpo.engines.kernels.last_layer import decoder_layers
from agentgrpo.engines.torch_settings import TorchSettings
from agentgrpo.grpo.aggregation import token_mean
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.packing import PackedBatch, idle_batch, pack, split_groups
from agentgrpo.training.head import CHUNK_TOKENS, Head, TokenScores
from agentgrpo.training.objective import MicroBatch, Objective, fresh_tokens, highest
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, fitting_tokens
from agentgrpo.training.precision import autocast, first_non_finite
from agentgrpo.training.process_group import Alone, ProcessGroup
from agentgrpo.training.sharding import is_sharded
from agentgrpo.training.update_metrics import Totals, UpdateMetrics

Guard = Callable[[Mapping[str, float]], None]
"""(tags of an optimizer step that is about to be taken); raises a TrainingError to refuse the step."""


class Trainer:
    """Performs updates: `update` trains on the samples of one step with `algorithm`.

    reference: frozen weights, required if and only if the algorithm has a KL term (reference.frozen_reference).
    temperature: the rollout's; log-probs are those of softmax(logits / temperature), as they were sampled.
    tokens_per_micro_batch: input tokens of one forward pass, None = `fitting_tokens`. head_chunk_tokens: loss tokens
    whose logits exist at a time, head_chunk_tokens * vocabulary numbers. Neither changes the result beyond rounding.
    mixed_precision: no | bf16 = the products of forward and backward in bfloat16; log-probs, losses, gradients and
    weights keep their dtype. activation_checkpointing: see training.policy.
    total_steps: length of the learning-rate schedule, in updates.
    clock: divides the time of an update among pack, forward, backward and optimizer.
    world: the processes that share each mini-batch's micro-batches; None = this process alone.
    sampler_differs: the rollout's log-probs do not come from the policy before the update (another engine or precision,
    older weights), so the algorithm's correction applies.
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
        activation_checkpointing: bool | None = None,
        clock: Clock | None = None,
        world: ProcessGroup | None = None,
        sampler_differs: bool = False,
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
        self._unused_ids = frozenset(policy.vocabulary.unused)
        self.reference = reference
        self.optimizer = optimizer
        self.algorithm = algorithm
        self.total_steps = total_steps
        self.temperature = temperature
        self.tokens_per_micro_batch = tokens
        self.head_chunk_tokens = head_chunk_tokens
        self.activation_checkpointing = activation_checkpointing
        self.clock = clock or NoClock()
        self.world = world or Alone()
        self.objective = Objective(algorithm, sampler_differs=sampler_differs)
        # Every pass through sharded layers is a collective, so all processes must run the same number of passes.
        self._torch = TorchSettings.of_run()
        self._in_step = any(map(is_sharded, policy.model.parameters()))
        self._may_recompute = not self._in_step and decoder_layers(policy.model) is not None
        self._forward_precision = partial(autocast, mixed_precision, policy.device)
        self._forward_precision()  # so that an unknown name fails at construction

    def update(
        self,
        samples: Sequence[TrainingSample],
        *,
        step: int,
        guard: Guard | None = None,
    ) -> UpdateMetrics:
        """Run one update, the 0-based `step` of the run: `num_epochs` passes of `mini_batches` optimizer steps.

        samples: all samples of the step, equal on every process. guard: called before each optimizer step with its
        loss, gradient norm and policy metrics; it may raise a TrainingError to refuse the update.
        A mini-batch in which no sample has a gradient takes no optimizer step. If this holds for all mini-batches, the
        weights stay unchanged, but the update still counts as a step. Raises TrainingError naming the step for an
        advantage, rollout log-prob, loss, gradient norm or optimizer state that is not finite.
        """
        _refuse_non_finite_samples(samples, step)
        _refuse_unused_ids(samples, self._unused_ids, step)
        lr = self.optimizer.learning_rate(step, self.total_steps)
        totals = Totals()
        losses: list[float] = []
        norms: list[float] = []
        with self._torch.in_force(), self._atomic():
            packed = [p for p in map(self._pack, split_groups(samples, self.algorithm.mini_batches)) if p]
            mini_batches = [self._mini_batch(batches, step) for batches in packed]
            for epoch in range(self.algorithm.num_epochs):
                for number, mini_batch in enumerate(mini_batches):
                    where = f"step {step}, epoch {epoch}, mini-batch {number}"
                    of_step = self._gradient(mini_batch, stepped=bool(losses))
                    norms.append(self._optimizer_step(of_step, lr, where, guard))
                    losses.append(of_step.loss)
                    totals.add(of_step)
        batches = [batch for mini_batch in packed for batch in mini_batch]
        return UpdateMetrics.of(totals, losses, norms, batches, lr=lr, step=step)

    def reference_logprobs(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """Return the reference log-probs [its loss tokens] of each sample, in order. Each process scores its share, and
        all processes get all results."""
        assert self.reference is not None
        rank, size, tokens = self.world.rank, self.world.size, self.tokens_per_micro_batch
        batches = pack(samples, tokens_per_batch=tokens, token_weights=token_mean, min_batches=size)
        with self._torch.in_force():
            own = [b.to(self.policy.device, self.policy.dtype) for b in batches[rank::size]]
            scores = [self._scores(self.reference, b, self._support(b, "KL")) for b in own]
            everywhere = self.world.gather([s.logprobs.cpu() for s in scores])
        found = {id(s): torch.zeros(0) for s in samples}
        for i, batch in enumerate(batches):
            scored = torch.split(everywhere[i % size][i // size], list(batch.num_tokens))
            found |= {id(s): logprobs for s, logprobs in zip(batch.samples, scored, strict=True)}
        return [found[id(s)] for s in samples]

    def _pack(self, samples: Sequence[TrainingSample]) -> list[PackedBatch]:
        with self.clock.stage(Stage.PACK):
            return pack(
                samples,
                tokens_per_batch=self.tokens_per_micro_batch,
                token_weights=self.algorithm.token_weights,
                skip_zero_advantage=self.algorithm.skips_zero_advantage,
                min_batches=self.world.size,
            )

    def _mini_batch(self, batches: Sequence[PackedBatch], step: int) -> list[MicroBatch]:
        """Return this process's share of a mini-batch."""
        with self.clock.stage(Stage.PACK):
            share = list(batches[self.world.rank :: self.world.size])
            if self._in_step:
                share += [idle_batch()] * (-(-len(batches) // self.world.size) - len(share))
            own = [b.to(self.policy.device, self.policy.dtype) for b in share]
        fraction = self.algorithm.top_entropy_fraction
        needs_scores = not self.algorithm.is_on_policy or fraction is not None
        supports = [self._support(b, f"step {step}") for b in own]
        pairs = list(zip(own, supports, strict=True))
        scores = [self._scores(self.policy, b, support) if needs_scores else None for b, support in pairs]
        least = None
        if fraction is not None:
            scored = [s.entropy.cpu() for b, s in zip(own, scores, strict=True) if s is not None and b.samples]
            everywhere = self.world.gather(scored)
            least = highest([e for of_process in everywhere for e in of_process], fraction)
        return [
            MicroBatch(
                batch=b,
                old_logprobs=None if s is None or self.algorithm.is_on_policy else s.logprobs,
                ref_logprobs=self._ref_logprobs(b, support),
                kept=None if s is None or least is None else s.entropy >= least,
                fresh=fresh_tokens(b, step) if self.algorithm.has_old_samples and b.samples else None,
                support=support,
            )
            for (b, support), s in zip(pairs, scores, strict=True)
        ]

    def _support(self, batch: PackedBatch, where: str) -> Support | None:
        try:
            return self.policy.support(batch)
        except EngineError as e:
            raise TrainingError(f"{where}: {e}") from e

    def _ref_logprobs(self, batch: PackedBatch, support: Support | None) -> Tensor | None:
        if self.reference is None or not self.algorithm.has_kl_loss:
            return None
        return self._scores(self.reference, batch, support).logprobs

    @torch.no_grad()
    def _scores(self, policy: Policy, batch: PackedBatch, support: Support | None) -> TokenScores:
        with self.clock.stage(Stage.FORWARD):
            states, head = self._forward(policy, batch)
            return head.score_all(states, batch.targets, support)

    def _forward(self, policy: Policy, batch: PackedBatch, *, recompute: bool = False) -> tuple[Tensor, Head]:
        """Return the hidden states that predict the batch's targets, and the head that scores them."""
        with self._forward_precision():
            states = policy.hidden_states(batch, recompute=recompute)
            return states, policy.head(temperature=self.temperature, chunk_tokens=self.head_chunk_tokens)

    def _gradient(self, mini_batch: Sequence[MicroBatch], *, stepped: bool) -> Totals:
        """Compute the gradient of the whole mini-batch in the parameters of every process, and return its totals."""
        own = Totals()
        for micro in mini_batch:
            self._backward(micro, own if micro.batch.samples else Totals(), stepped=stepped)
        if self.world.size == 1:
            return own
        everywhere = self.world.gather((own, self.optimizer.with_gradient()))
        self.world.add_up(self.optimizer.live_gradients(set().union(*(names for _, names in everywhere))))
        return Totals.of(totals for totals, _ in everywhere)

    def _optimizer_step(self, of_step: Totals, lr: float, where: str, guard: Guard | None) -> float:
        """Take the optimizer step unless it is refused, and return the gradient norm."""
        if not math.isfinite(of_step.loss):
            raise TrainingError(
                f"{where}: the loss is {of_step.loss}; only finite losses are stepped; nothing was changed"
            )
        with self.clock.stage(Stage.OPTIMIZER):
            norm = self.optimizer.gradient_norm()
            if not math.isfinite(norm):
                raise TrainingError(
                    f"{where}: the gradient norm is {norm}; only finite ones are stepped; nothing was changed"
                )
            tags = of_step.guarded(norm)
            for tag, value in tags.items():
                if not math.isfinite(value):
                    raise TrainingError(f"{where}: {tag} is {value}; only finite ones are stepped; nothing was changed")
            if odd := first_non_finite(self.optimizer.state_tensors()):
                raise TrainingError(f"{where}: the optimizer's {odd} is not finite; nothing was changed")
            if guard is not None:
                guard(tags)
            self.optimizer.step(lr=lr, gradient_norm=norm)
        return norm

    def _recomputes(self, batch: PackedBatch) -> bool:
        """Return whether to recompute activations; by default, for a batch longer than a micro-batch should be."""
        if self.activation_checkpointing is not None:
            return self.activation_checkpointing
        return self._may_recompute and batch.input_ids.numel() > self.tokens_per_micro_batch

    def _backward(self, micro: MicroBatch, totals: Totals, *, stepped: bool) -> None:
        """Add the micro-batch's gradient to the parameters, and its share of the loss to the totals.

        The gradient of the head is computed chunk by chunk while the logits exist. The remaining gradient of the hidden
        states is propagated through the model in one pass.
        """
        targets, support = micro.batch.targets, micro.support
        with self.clock.stage(Stage.FORWARD):
            states, head = self._forward(self.policy, micro.batch, recompute=self._recomputes(micro.batch))
            needs_all = self.objective.needs_whole_samples(stepped=stepped)
            logprobs = head.score_all(states, targets, support).logprobs if needs_all else None
            terms = self.objective.sample_terms(micro, logprobs)
        gradient = torch.empty_like(states)
        loss = 0.0
        for chunk in head.chunks(len(states)):
            with self.clock.stage(Stage.FORWARD):
                scores = head.score(states[chunk], targets[chunk], support and support.within(chunk))
            with self.clock.stage(Stage.BACKWARD):
                logprobs = scores.logprobs.requires_grad_()
                chunk_loss = self.objective.chunk_loss(micro, terms, chunk, logprobs, totals)
                totals.entropy += float(scores.entropy.sum())
                [of_logprobs] = torch.autograd.grad(chunk_loss, logprobs)
                of_entropy = self.objective.of_entropy(micro, chunk)
                gradient[chunk] = head.backward(of_logprobs, of_entropy)
                loss += chunk_loss.item() + (0.0 if of_entropy is None else float(of_entropy @ scores.entropy))
        with self.clock.stage(Stage.BACKWARD):
            if states.requires_grad:  # else only the head is trained
                torch.autograd.backward(states, gradient)
        totals.losses.append(loss)

    @contextmanager
    def _atomic(self) -> Iterator[None]:
        """Clear all gradients on entry and exit; if the block fails, undo the optimizer steps it has taken."""
        self.optimizer.zero_grad()
        trained = [p for p in self.policy.model.parameters() if p.requires_grad]
        live = [*trained, *self.optimizer.state_tensors().values()]
        # If there is only one optimizer step, it comes last, and a failure before it leaves nothing to undo.
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


def _refuse_unused_ids(samples: Sequence[TrainingSample], unused: frozenset[int], step: int) -> None:
    """Raise TrainingError if a sample trains an id that no engine samples, as in an episode recorded by other means."""
    for sample in samples if unused else ():
        if odd := unused.intersection(compress(sample.token_ids, sample.loss_mask)):
            raise TrainingError(
                f"step {step}, sample {sample.group_id}/{sample.sample_index}: it trains the id {min(odd)}, which is "
                "not a token of this tokenizer; only tokens are sampled and trained: leave that episode out"
            )


def _refuse_non_finite_samples(samples: Sequence[TrainingSample], step: int) -> None:
    for s in samples:
        where = f"step {step}, sample {s.group_id}/{s.sample_index}"
        if odd := [a for a in s.token_advantages if not math.isfinite(a)]:
            raise TrainingError(f"{where}: its advantage is {odd[0]}; only finite ones are trained on")
        if s.rollout_logprobs is None:
            continue
        bad = [x for x, m in zip(s.rollout_logprobs, s.loss_mask, strict=True) if m and not math.isfinite(x)]
        if bad:
            raise TrainingError(f"{where}: a rollout log-prob is {bad[0]}; only finite ones are trained on")
