"""TrainingSamples -> the tensors of one optimizer step, each shared prompt once.

Worked example: two samples of one group, prompt P = p0 p1 (shared), with token_ids P+a0 a1+e0+b0 and P+c0:

    input_ids       p0 p1 | a0 a1 e0 |        b0 and c0 predict no trained token, so they are not inputs
    position_ids     0  1 |  2  3  4 |
    rows            (prompt 0:2, own 2:5), (prompt 0:2, own 5:5)
    targets         a0 a1 b0 | c0
    loss_positions   1  2  4 |  1             position predicting each target; for a0 and c0: the prompt's last

A row's tokens attend to the row's prompt and to the row itself, never to another row. A row's last loss token and
everything after it are dropped from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import TrainingSample


class PackedRow(NamedTuple):
    """One sample's place in the packed sequence: a prompt piece, shared or not, followed by the sample's own piece."""

    prompt_start: int
    prompt_length: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One micro-batch. T = packed input tokens, M = loss tokens in the order of the rows."""

    input_ids: Tensor
    """[T] int64."""
    position_ids: Tensor
    """[T] int64; the positions of a sample's own tokens continue those of its prompt."""
    rows: tuple[PackedRow, ...]
    loss_positions: Tensor
    """[M] int64 in [0, T): the position whose hidden state predicts the target."""
    targets: Tensor
    """[M] int64."""
    rollout_logprobs: Tensor | None
    """[M] float64: log-prob of each target when it was sampled; None if a sample is a demonstration."""
    advantages: Tensor
    """[M] float64."""
    weights: Tensor
    """[M] float64: the aggregation weight of each token; contains every denominator."""
    samples: tuple[TrainingSample, ...]
    """The sample of each row."""
    num_tokens: tuple[int, ...]
    """Number of loss tokens of each row; they add up to M."""
    num_loss_tokens: int
    """Number of loss tokens of all samples of the optimizer step, including all micro-batches and the skipped
    samples."""
    grammars: tuple[tuple[int, int, str], ...] = ()
    """(first of the M loss tokens, number of tokens, grammar) of each turn that was held to a grammar, in order."""

    def to(self, device: torch.device, dtype: torch.dtype) -> PackedBatch:
        """Return the same batch on `device`, with floating-point tensors as `dtype`."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            loss_positions=self.loss_positions.to(device),
            targets=self.targets.to(device),
            rollout_logprobs=None if self.rollout_logprobs is None else self.rollout_logprobs.to(device, dtype),
            advantages=self.advantages.to(device, dtype),
            weights=self.weights.to(device, dtype),
        )


def pack(
    samples: Sequence[TrainingSample],
    *,
    tokens_per_batch: int,
    token_weights: Callable[[Sequence[int], Sequence[str]], Sequence[float]],
    skip_zero_advantage: bool = False,
    min_batches: int = 1,
) -> list[PackedBatch]:
    """Return the micro-batches of one optimizer step over `samples`, in an order independent of the input order.

    token_weights: loss-token counts and groups of all samples -> the weight of each sample's tokens
    (aggregation.AGGREGATIONS).
    skip_zero_advantage: leave out samples with advantage 0; their tokens still count in `token_weights`.
    tokens_per_batch: maximum number of input tokens per batch. A longer sample gets its own batch. If all samples of a
    batch share one prompt, the batch may always hold half that many tokens in addition to the prompt, so that a long
    prompt is forwarded a few times instead of once per sample.
    min_batches: minimum number of batches, if there are enough samples; batches are made smaller if necessary.
    Samples without a loss token have no gradient and count nowhere. Raises DataError for a sample with a loss token in
    the shared prompt or at position 0, which no forward pass can score.
    """
    trained = sorted(filter(_has_loss_tokens, samples), key=_canonical_order)
    num_tokens = [sum(s.loss_mask) for s in trained]
    weights = token_weights(num_tokens, [s.group_id for s in trained]) if trained else []
    total = sum(num_tokens)
    kept = [(s, w) for s, w in zip(trained, weights, strict=True) if not skip_zero_advantage or any(s.token_advantages)]
    drafts = list(_drafts(kept, tokens_per_batch))
    while len(drafts) < min(min_batches, len(kept)) and tokens_per_batch > 0:
        tokens_per_batch = min(tokens_per_batch, max(len(draft.input_ids) for draft in drafts)) * 3 // 4
        drafts = list(_drafts(kept, tokens_per_batch))
    return [draft.finish(total) for draft in drafts]


def split_groups(samples: Sequence[TrainingSample], parts: int) -> list[list[TrainingSample]]:
    """Distribute whole groups round-robin, in the order of their ids, so that shared prompts stay shared."""
    order = {group: i for i, group in enumerate(sorted({s.group_id for s in samples}))}
    return [[s for s in samples if order[s.group_id] % parts == part] for part in range(parts)]


def idle_batch() -> PackedBatch:
    """Return a batch of one token that has no loss, for a process that has no batch while other processes have one."""
    zero = torch.zeros(1, dtype=torch.int64)
    nothing = torch.zeros(1, dtype=torch.float64)
    return PackedBatch(
        input_ids=zero,
        position_ids=zero,
        rows=(PackedRow(0, 0, 0, 1),),
        loss_positions=zero,
        targets=zero,
        rollout_logprobs=nothing,
        advantages=nothing,
        weights=nothing,
        samples=(),
        num_tokens=(1,),
        num_loss_tokens=0,
    )


def _canonical_order(sample: TrainingSample) -> tuple[str, int, tuple[int, ...]]:
    """Sort by group, then sample, then tokens, because a sample may have several branches."""
    return (sample.group_id, sample.sample_index, sample.token_ids)


def _has_loss_tokens(sample: TrainingSample) -> bool:
    first = next((i for i, m in enumerate(sample.loss_mask) if m), None)
    if first is not None and first < max(1, sample.num_prompt_tokens):
        raise DataError(
            f"sample {sample.group_id}/{sample.sample_index}: its first loss token is at {first}; allowed are "
            f"positions after the shared prompt ({sample.num_prompt_tokens} tokens), never position 0; check the mask"
        )
    return first is not None


def _drafts(samples: Sequence[tuple[TrainingSample, float]], tokens_per_batch: int) -> Iterator[_Draft]:
    draft = _Draft()
    for sample, weight in samples:
        if draft.rows and not draft.has_room_for(sample, tokens_per_batch):
            yield draft
            draft = _Draft()
        draft.add(sample, weight)
    if draft.rows:
        yield draft


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A batch under construction, as plain lists."""

    input_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    rows: list[PackedRow] = field(default_factory=list)
    loss_positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    rollout_logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    samples: list[TrainingSample] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    grammars: list[tuple[int, int, str]] = field(default_factory=list)
    prompts: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    """Start position of each (group, prompt)."""

    def has_room_for(self, sample: TrainingSample, tokens_per_batch: int) -> bool:
        tokens = len(self.input_ids) + _end(sample) - sample.num_prompt_tokens
        if _prompt(sample) not in self.prompts:
            return tokens + sample.num_prompt_tokens <= tokens_per_batch
        alone = sample.num_prompt_tokens + tokens_per_batch // 2 if len(self.prompts) == 1 else 0
        return tokens <= max(tokens_per_batch, alone)

    def add(self, sample: TrainingSample, weight: float) -> None:
        ids, prompt_length = sample.token_ids, sample.num_prompt_tokens
        if _prompt(sample) not in self.prompts:
            self.prompts[_prompt(sample)] = len(self.input_ids)
            self.input_ids += ids[:prompt_length]
            self.position_ids += range(prompt_length)
        prompt_start, start, end = self.prompts[_prompt(sample)], len(self.input_ids), _end(sample)
        self.rows.append(PackedRow(prompt_start, prompt_length, start, end - prompt_length))
        self.input_ids += ids[prompt_length:end]
        self.position_ids += range(prompt_length, end)
        at = [i for i, m in enumerate(sample.loss_mask) if m]
        self.loss_positions += [
            prompt_start + i - 1 if i <= prompt_length else start + i - 1 - prompt_length for i in at
        ]
        place = {i: len(self.targets) + n for n, i in enumerate(at)}
        self.grammars += [(place[first], count, grammar) for first, count, grammar in sample.grammars]
        self.targets += [ids[i] for i in at]
        self.rollout_logprobs += [sample.rollout_logprobs[i] for i in at] if sample.rollout_logprobs else []
        credit = sample.token_advantages
        self.advantages += [credit[i] for i in at]
        self.weights += [weight] * len(at)
        self.samples.append(sample)
        self.num_tokens.append(len(at))

    def finish(self, num_loss_tokens: int) -> PackedBatch:
        return PackedBatch(
            input_ids=torch.tensor(self.input_ids),
            position_ids=torch.tensor(self.position_ids),
            rows=tuple(self.rows),
            loss_positions=torch.tensor(self.loss_positions),
            targets=torch.tensor(self.targets),
            rollout_logprobs=None
            if any(s.rollout_logprobs is None for s in self.samples)
            else torch.tensor(self.rollout_logprobs, dtype=torch.float64),
            advantages=torch.tensor(self.advantages, dtype=torch.float64),
            weights=torch.tensor(self.weights, dtype=torch.float64),
            samples=tuple(self.samples),
            num_tokens=tuple(self.num_tokens),
            num_loss_tokens=num_loss_tokens,
            grammars=tuple(self.grammars),
        )


def _prompt(sample: TrainingSample) -> tuple[str, tuple[int, ...]]:
    """Return the key under which samples share a prompt: the same group and the same prompt tokens."""
    return (sample.group_id, sample.token_ids[: sample.num_prompt_tokens])


def _end(sample: TrainingSample) -> int:
    """Return how many tokens of the sample are inputs: all tokens before its last loss token."""
    return max(i for i, m in enumerate(sample.loss_mask) if m)
