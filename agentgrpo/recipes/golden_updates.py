"""Gradients of the real trainer against plain autograd: a small random model, rows with padding, all logits at once.

What the trainer does to be fast (shared prompts, packed attention, chunks of the head, micro-batches, a second pass for
sample ratios) is left out on the plain side; what the loss is comes from grpo.golden.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentgrpo.grpo import golden
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.golden import Answer
from agentgrpo.recipes.comparison import Comparison, Keys, relative_error, worst
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, init_policy
from agentgrpo.training.trainer import Trainer
from agentgrpo.types import TrainingSample

UPDATES: Sequence[Keys] = (
    {"loss": "clipped", "clip_dual": 3.0, "aggregation": "sequence_mean", "correction": "sequence_mask"},
    {"loss": "clipped", "aggregation": "token_mean", "kl_coef": 0.2, "kl": "k3", "correction": "token_truncate"},
    {"loss": "sequence_clipped", "clip_low": 0.1, "clip_high": 0.1, "aggregation": "sequence_sum",
     "correction": "none"},
    {"loss": "cispo", "aggregation": "prompt_mean", "kl_coef": 0.2, "kl": "k2", "correction": "token_mask"},
    {"loss": "sapo", "aggregation": "constant", "max_sampled_tokens": 9, "correction": "sequence_truncate"},
    {"loss": "vespo", "aggregation": "token_mean", "kl_coef": 0.2, "kl": "k1", "kl_importance": True,
     "correction": "sequence_truncate"},
    {"loss": "reinforce", "aggregation": "sequence_mean", "kl_coef": 0.2, "kl": "abs", "correction": "token_truncate"},
    {"loss": "clipped", "aggregation": "prompt_mean", "kl_coef": 0.2, "entropy_coef": 0.3, "top_entropy_fraction": 0.4,
     "correction": "none"},
)  # fmt: skip
MINI_BATCHES = 2
"""At the second one the old policy is another one."""
VOCABULARY = 48
TEMPERATURE = 0.7
TOLERANCE = 1e-4
"""Of float32 sums in another order."""


class OptimizerStep(NamedTuple):
    """What the trainer was about to do: its weights, the loss there, and the gradients by parameter name."""

    weights: Mapping[str, Tensor]
    loss: float
    gradients: Mapping[str, Tensor]


def compare_updates(device: str) -> Iterator[Comparison]:
    for keys in UPDATES:
        algorithm = Algorithm(**keys, mini_batches=MINI_BATCHES)
        policy, reference = _policy(0, device), _policy(1, device)
        plain, start = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
        samples = _sampled(start, _samples())
        losses, gradients = [], []
        for number, step in enumerate(_steps(policy, reference, algorithm, samples)):
            part = [s for s in samples if int(s.group_id) % MINI_BATCHES == number]
            plain.load_state_dict(step.weights)
            loss, expected = _plain(plain, start, reference.model, algorithm, part)
            losses.append(relative_error([step.loss], [loss], least=1.0))
            gradients.append(_distance(step.gradients, expected))
        yield Comparison("updates", keys, worst(losses), worst(gradients), TOLERANCE)


def _policy(seed: int, device: str) -> Policy:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")),
        pad_token="w0",
        eos_token="w1",
    )
    policy = init_policy(
        tokenizer=tokenizer,
        hidden_size=32,
        num_layers=2,
        intermediate_size=48,
        num_kv_heads=2,
        seed=seed,
        device=device,
    )
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.ndim > 1:
                parameter *= 7  # far enough from uniform that every error shows
    return policy


def _samples() -> list[TrainingSample]:
    """Groups with a shared prompt; each sample samples, reads, samples and reads again."""
    rng = random.Random(0)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    samples = []
    for group in range(4):
        prompt = tokens(2, 6)
        for index in range(3):
            parts = ((prompt, 0), (tokens(1, 5), 1), (tokens(1, 6), 0), (tokens(1, 4), 1), (tokens(0, 3), 0))
            ids = tuple(t for part, _ in parts for t in part)
            samples.append(
                TrainingSample(
                    group_id=str(group),
                    sample_index=index,
                    token_ids=ids,
                    loss_mask=tuple(m for part, m in parts for _ in part),
                    rollout_logprobs=(0.0,) * len(ids),
                    advantage=rng.uniform(-2, 2),
                    num_prompt_tokens=len(prompt),
                    policy_version=0,
                )
            )
    return samples


@torch.no_grad()
def _sampled(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples with log-probs of a sampler that is not quite `model`."""
    rng, sampled = random.Random(1), []
    for sample, logprobs in zip(samples, _scores(model, samples).logprobs, strict=True):
        values = iter(logprobs.tolist())
        noisy = tuple(next(values) + rng.uniform(-0.6, 0.4) if m else 0.0 for m in sample.loss_mask)
        sampled.append(dataclasses.replace(sample, rollout_logprobs=noisy))
    return sampled


def _steps(
    policy: Policy, reference: Policy, algorithm: Algorithm, samples: Sequence[TrainingSample]
) -> list[OptimizerStep]:
    """One update by the trainer, in small micro-batches and chunks."""
    steps: list[OptimizerStep] = []

    def keep(tags: Mapping[str, float]) -> None:
        weights = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
        gradients = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        steps.append(OptimizerStep(weights, tags["loss"], gradients))

    trainer = Trainer(
        policy=policy,
        reference=reference if algorithm.needs_reference else None,
        optimizer=AdamW(model=policy.model, lr=1e-2, warmup_steps=0),
        algorithm=algorithm,
        total_steps=1,
        temperature=TEMPERATURE,
        tokens_per_micro_batch=60,
        head_chunk_tokens=7,
        sampler_differs=True,
    )
    trainer.update(samples, step=0, guard=keep)
    return steps


def _plain(
    model: PreTrainedModel,
    start: PreTrainedModel,
    reference: PreTrainedModel,
    algorithm: Algorithm,
    samples: Sequence[TrainingSample],
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one optimizer step, by rows, padding and full logits."""
    model.zero_grad()
    now = _scores(model, samples)
    with torch.no_grad():
        old, ref = _scores(start, samples), _scores(reference, samples)
    share = algorithm.top_entropy_fraction or 1.0
    least = torch.cat(old.entropies).double().quantile(1 - share)
    answers = [
        Answer(
            group=sample.group_id,
            advantages=(float(sample.token_advantages[0]),) * len(now.logprobs[i]),
            policy=tuple(now.logprobs[i].tolist()),
            old=tuple(old.logprobs[i].tolist()),
            rollout=tuple(x for x, m in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if m),
            reference=tuple(ref.logprobs[i].tolist()),
            kept=tuple((old.entropies[i] >= least).tolist()),
        )
        for i, sample in enumerate(samples)
    ]
    slopes = golden.gradient(answers, algorithm, corrected=True)
    bonus = [algorithm.entropy_coef / golden.denominator(answers, i, algorithm) for i in range(len(answers))]
    torch.autograd.backward(
        [*now.logprobs, *now.entropies],
        [x.new_tensor(of_answer) for x, of_answer in zip(now.logprobs, slopes, strict=True)]
        + [torch.full_like(h, -weight) for h, weight in zip(now.entropies, bonus, strict=True)],
    )
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    entropy = sum(float(h.detach().sum()) * weight for h, weight in zip(now.entropies, bonus, strict=True))
    return golden.value(answers, algorithm, corrected=True) - entropy, gradients


class Scores(NamedTuple):
    """[loss tokens] of each sample."""

    logprobs: list[Tensor]
    entropies: list[Tensor]


def _scores(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> Scores:
    longest = max(len(s.token_ids) for s in samples)

    def padded(rows: Iterator[tuple[int, ...]]) -> Tensor:
        return torch.tensor([(*row, *(0,) * (longest - len(row))) for row in rows], device=model.device)

    ids, loss = padded(s.token_ids for s in samples), padded(s.loss_mask for s in samples).bool()
    real = padded((1,) * len(s.token_ids) for s in samples)
    logits = model(input_ids=ids, attention_mask=real, use_cache=False).logits[:, :-1]
    every = (logits / TEMPERATURE).log_softmax(-1)
    entropies = -(every.exp() * every).sum(-1)
    logprobs = every.gather(2, ids[:, 1:, None])[:, :, 0]
    kept = loss[:, 1:]
    return Scores(
        [x[k] for x, k in zip(logprobs, kept, strict=True)], [h[k] for h, k in zip(entropies, kept, strict=True)]
    )


def _distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """|found - expected| / |expected| over all parameters together; NaN where they are not the same parameters."""
    if found.keys() != expected.keys():
        return float("nan")
    a, b = (torch.cat([tensors[n].double().cpu().flatten() for n in expected]) for tensors in (found, expected))
    return float((a - b).norm() / b.norm())
