"""Every loss x aggregation x KL x correction, and every advantage, against the scalar reference of grpo.golden."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from agentgrpo.grpo import golden
from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.correction import CORRECTIONS
from agentgrpo.grpo.golden import Answer
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES
from agentgrpo.grpo.packing import pack
from agentgrpo.recipes.comparison import Comparison, Keys, relative_error
from agentgrpo.training.objective import MicroBatch, Objective
from agentgrpo.training.update_metrics import Totals
from agentgrpo.types import TrainingSample

CHOSEN: Sequence[Keys] = (
    {"loss": "clipped", "clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0},
    {"loss": "sequence_clipped", "clip_low": 0.2, "clip_high": 0.3, "clip_dual": 1.5},
    {"loss": "cispo", "clip_low": 0.4, "clip_high": 0.5},
    {"loss": "sapo", "sapo_temperature_positive": 0.8, "sapo_temperature_negative": 1.5},
    {
        "loss": "vespo",
        "vespo_k_positive": 1.5,
        "vespo_lambda_positive": 1.0,
        "vespo_k_negative": 2.5,
        "vespo_lambda_negative": 0.5,
    },
)
"""Losses with other than their published values."""
KL_COEF = 0.3
MAX_SAMPLED_TOKENS = 7
CHUNK_TOKENS = 5
"""Fewer than an answer pair has: chunks cut through answers."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
EPS = 1e-3
"""Of the advantages; large enough to be seen."""


def variants() -> Iterator[dict[str, Any]]:
    """Every mix, as keys of the algorithm node; of values that are not the published ones those with one aggregation,
    whose weights they do not touch."""
    published: list[Keys] = [{"loss": name} for name in LOSSES]
    losses = [*itertools.product(published, AGGREGATIONS), *itertools.product(CHOSEN, ["token_mean"])]
    kls: list[Keys] = [{"kl_coef": 0.0}]
    kls += [
        {"kl_coef": KL_COEF, "kl": name, "kl_importance": weighed}
        for name in KL_ESTIMATORS
        for weighed in (False, True)
    ]
    for (loss, aggregation), kl, correction in itertools.product(losses, kls, CORRECTIONS):
        keys = {**loss, "aggregation": aggregation, **kl, "correction": correction}
        yield keys | ({"max_sampled_tokens": MAX_SAMPLED_TOKENS} if aggregation == "constant" else {})


def compare_losses(device: torch.device, dtype: torch.dtype | None = None) -> Iterator[Comparison]:
    """dtype: that of the log-probs; None = the widest that the device has."""
    dtype = dtype or (torch.float32 if device.type == "mps" else torch.float64)
    for keys in variants():
        algorithm = Algorithm(**keys, mini_batches=2)  # so that the old policy may be another one
        value, gradient = objective(golden.ANSWERS, algorithm, device, dtype)
        slopes = golden.gradient(golden.ANSWERS, algorithm, corrected=True)
        yield Comparison(
            part="losses",
            keys=keys,
            value_error=relative_error([value], [golden.value(golden.ANSWERS, algorithm, corrected=True)], least=1.0),
            gradient_error=relative_error(gradient, [x for of_answer in slopes for x in of_answer]),
            tolerance=TOLERANCES[dtype],
        )


def objective(
    answers: Sequence[Answer], algorithm: Algorithm, device: torch.device, dtype: torch.dtype
) -> tuple[float, list[float]]:
    """The trainer's objective on given log-probs and its gradient by each of them: packed, weighted and taken in chunks
    as in an update. `answers` stand in the order of their groups."""

    def tensor(values: Iterable[Sequence[float]]) -> Tensor:
        return torch.tensor(list(itertools.chain.from_iterable(values)), device=device, dtype=dtype)

    samples = [_sample(i, a) for i, a in enumerate(answers)]
    size = sum(len(s.token_ids) for s in samples)
    [batch] = pack(samples, tokens_per_batch=size, token_weights=algorithm.token_weights)
    policy = tensor(a.policy for a in answers).requires_grad_()
    micro = MicroBatch(
        batch=batch.to(device, dtype),
        old_logprobs=tensor(a.old for a in answers),
        ref_logprobs=tensor(a.reference for a in answers) if algorithm.has_kl_loss else None,
        kept=tensor(a.kept for a in answers).bool() if answers[0].kept else None,
    )
    loss = Objective(algorithm, sampler_differs=True)
    terms = loss.sample_terms(micro, policy.detach() if loss.needs_whole_samples(stepped=True) else None)
    chunks = [slice(start, start + CHUNK_TOKENS) for start in range(0, len(policy), CHUNK_TOKENS)]
    value = torch.stack([loss.chunk_loss(micro, terms, c, policy[c], Totals()) for c in chunks]).sum()
    [gradient] = torch.autograd.grad(value, policy)
    return value.item(), gradient.tolist()


def _sample(index: int, answer: Answer) -> TrainingSample:
    n = len(answer.policy)
    return TrainingSample(
        group_id=answer.group,
        sample_index=index,
        token_ids=tuple(range(n + 1)),
        loss_mask=(0,) + (1,) * n,
        rollout_logprobs=(0.0, *answer.rollout),
        advantage=(0.0, *answer.advantages),
        num_prompt_tokens=1,
        policy_version=0,
    )


def compare_advantages() -> Iterator[Comparison]:
    groups = [GroupRewards(totals, terms) for totals, terms in zip(golden.REWARDS, golden.TERMS, strict=True)]
    expected = {name: golden.advantages(name, EPS) for name in ADVANTAGES}
    for name, estimate in ADVANTAGES.items():
        found = [a for group in estimate(groups, eps=EPS) for a in group if a is not None]
        yield Comparison(
            part="advantages",
            keys={"advantage": name},
            value_error=relative_error(found, [a for group in expected[name] for a in group], least=1.0),
            gradient_error=None,
            tolerance=TOLERANCES[torch.float64],
        )
