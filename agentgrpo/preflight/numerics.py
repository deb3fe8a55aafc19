"""`agentgrpo check numerics`: compares an update's computations with a scalar reference on this machine and device.

    losses      every loss x aggregation x KL x correction: the trainer's objective on given log-probs, value and
                gradient, in float64 (float32 where the device has no wider one)
    advantages  every advantage
    updates     the gradients of the real trainer on a small random model in float32

Variants that differ by more than their tolerance are named. Nothing is loaded, downloaded or written.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentgrpo.config.admission import override
from agentgrpo.core.types import TrainingSample
from agentgrpo.grpo import golden
from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.correction import CORRECTIONS
from agentgrpo.grpo.golden import GoldenSample
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES
from agentgrpo.grpo.packing import pack
from agentgrpo.training.objective import MicroBatch, Objective
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, init_policy
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.update_metrics import Totals

# --- Comparisons of a computed number with the reference, and a table of them.

Keys = Mapping[str, Any]
"""Keys of the algorithm node."""


class Comparison(NamedTuple):
    """Comparison of one variant. Errors are relative to the largest number of the reference, or to 1 if that is
    smaller."""

    part: str
    """losses | advantages | updates"""
    keys: Keys
    value_error: float
    gradient_error: float | None
    """None for a variant without a gradient."""
    tolerance: float

    @property
    def equal(self) -> bool:
        # Both comparisons are false for NaN.
        return self.value_error <= self.tolerance and (self.gradient_error or 0.0) <= self.tolerance

    @property
    def name(self) -> str:
        """The keys as command-line overrides."""
        return " ".join(override(f"algorithm.{key}", value) for key, value in self.keys.items())

    def state(self) -> dict[str, Any]:
        """The comparison as JSON; an error that is not finite is null."""
        return {
            "part": self.part,
            "keys": dict(self.keys),
            "value_error": _number(self.value_error),
            "gradient_error": _number(self.gradient_error),
            "tolerance": self.tolerance,
            "equal": self.equal,
        }


def relative_error(found: Sequence[float], expected: Sequence[float], *, least: float = 0.0) -> float:
    """The largest difference divided by the largest expected number (at least `least`); NaN if any number is NaN."""
    difference = worst(abs(f - e) for f, e in zip(found, expected, strict=True))
    scale = max(least, worst(map(abs, expected)))
    return difference / scale if scale else math.inf if difference else 0.0


def worst(errors: Iterable[float]) -> float:
    """The largest error; NaN counts as the largest."""
    return max(errors, key=lambda error: (error != error, error))


SHOWN: Mapping[str, Sequence[str]] = {
    "losses": ("loss", "aggregation", "kl", "kl_importance", "correction"),
    "advantages": ("advantage",),
    "updates": ("loss",),
}
"""Part -> the keys of which each option has a line in the table."""


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """A line per part and option: the number of variants with that option, and their worst errors."""
    rows: dict[tuple[str, str], list[Comparison]] = {}
    for part, keys in SHOWN.items():
        for key in keys:
            for c in comparisons:
                if c.part == part and key in c.keys:
                    rows.setdefault((part, f"{key}={_text(c.keys[key])}"), []).append(c)
    lines = [f"{'part':<12}{'option':<34}{'variants':>8}{'value':>10}{'gradient':>10}"]
    for (part, option), found in rows.items():
        gradients = [c.gradient_error for c in found if c.gradient_error is not None]
        errors = [f"{worst(c.value_error for c in found):.1e}", f"{worst(gradients):.1e}" if gradients else "-"]
        mark = "" if all(c.equal for c in found) else "  not equal"
        lines.append(f"{part:<12}{option:<34}{len(found):>8}{errors[0]:>10}{errors[1]:>10}{mark}")
    return lines


def _text(value: object) -> str:
    """The value as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(error: float | None) -> float | None:
    """The error for JSON: null if it is not a finite number."""
    return error if error is not None and math.isfinite(error) else None


# --- Every loss x aggregation x KL x correction, and every advantage, against the scalar reference of grpo.golden.

CHOSEN: Sequence[Keys] = (
    {"loss": "clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0}},
    {"loss": "sequence_clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.3, "clip_dual": 1.5}},
    {"loss": "cispo", "loss_args": {"clip_low": 0.4, "clip_high": 0.5}},
    {"loss": "sapo", "loss_args": {"temperature_positive": 0.8, "temperature_negative": 1.5}},
    {
        "loss": "vespo",
        "loss_args": {"k_positive": 1.5, "lambda_positive": 1.0, "k_negative": 2.5, "lambda_negative": 0.5},
    },
)
"""Losses with values other than the published ones."""
KL_COEF = 0.3
MAX_SAMPLED_TOKENS = 7
CHUNK_TOKENS = 5
"""Fewer than the tokens of an answer pair, so that chunks cut through answers."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
EPS = 1e-3
"""Epsilon of the advantages, large enough to be visible in the results."""


def variants() -> Iterator[dict[str, Any]]:
    """Every combination, as keys of the algorithm node. Losses with unpublished values are combined with one
    aggregation only, whose weights do not depend on them."""
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
    """dtype: of the log-probs; None = the widest that the device has."""
    dtype = dtype or (torch.float32 if device.type == "mps" else torch.float64)
    for keys in variants():
        algorithm = Algorithm(**keys, mini_batches=2)  # so that the old policy can differ from the policy
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
    answers: Sequence[GoldenSample], algorithm: Algorithm, device: torch.device, dtype: torch.dtype
) -> tuple[float, list[float]]:
    """The trainer's objective on given log-probs and its gradient by each log-prob: packed, weighted and chunked as in
    an update. `answers` are sorted by group."""

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


def _sample(index: int, answer: GoldenSample) -> TrainingSample:
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


# --- Gradients of the real trainer against plain autograd: a small random model, rows with padding, all logits at once.
# The plain side leaves out the trainer's optimisations (shared prompts, packed attention, chunks of the head,
# micro-batches, a second pass for sample ratios); its loss comes from grpo.golden.

UPDATES: Sequence[Keys] = (
    {"loss": "clipped", "loss_args": {"clip_dual": 3.0}, "aggregation": "sequence_mean", "correction": "sequence_mask"},
    {"loss": "clipped", "aggregation": "token_mean", "kl_coef": 0.2, "kl": "k3", "correction": "token_truncate"},
    {"loss": "sequence_clipped", "loss_args": {"clip_low": 0.1, "clip_high": 0.1},
     "aggregation": "sequence_sum", "correction": "none"},
    {"loss": "cispo", "aggregation": "prompt_mean", "kl_coef": 0.2, "kl": "k2", "correction": "token_mask"},
    {"loss": "sapo", "aggregation": "constant", "max_sampled_tokens": 9, "correction": "sequence_truncate"},
    {"loss": "vespo", "aggregation": "token_mean", "kl_coef": 0.2, "kl": "k1", "kl_importance": True,
     "correction": "sequence_truncate"},
    {"loss": "reinforce", "aggregation": "sequence_mean", "kl_coef": 0.2, "kl": "abs", "correction": "token_truncate"},
    {"loss": "clipped", "aggregation": "prompt_mean", "kl_coef": 0.2, "entropy_coef": 0.3, "top_entropy_fraction": 0.4,
     "correction": "none"},
)  # fmt: skip
MINI_BATCHES = 2
"""From the second mini-batch on, the old policy differs from the policy."""
VOCABULARY = 48
TEMPERATURE = 0.7
TOLERANCE = 1e-4
"""Tolerance for float32 sums in another order."""


class OptimizerStep(NamedTuple):
    """The state before an optimizer step: the weights, the loss, and the gradients by parameter name."""

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
    """Groups with a shared prompt; each sample alternates sampled and given segments."""
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
    """The samples with log-probs of a sampler that differs slightly from `model`."""
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
    """Loss and gradients of one optimizer step, with one row per sample, padding and full logits."""
    model.zero_grad()
    now = _scores(model, samples)
    with torch.no_grad():
        old, ref = _scores(start, samples), _scores(reference, samples)
    share = algorithm.top_entropy_fraction or 1.0
    least = torch.cat(old.entropies).double().quantile(1 - share)
    answers = [
        GoldenSample(
            group=sample.group_id,
            advantages=(float(sample.token_advantages[0]),) * len(now.logprobs[i]),
            policy=tuple(now.logprobs[i].tolist()),
            old=tuple(old.logprobs[i].tolist()),
            rollout=tuple(x for x, m in zip(sample.rollout_logprobs or (), sample.loss_mask, strict=True) if m),
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
    """Log-probs and entropies of each sample, [loss tokens]."""

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
    """|found - expected| / |expected| over all parameters together; NaN if the parameter names differ."""
    if found.keys() != expected.keys():
        return float("nan")
    a, b = (torch.cat([tensors[n].double().cpu().flatten() for n in expected]) for tensors in (found, expected))
    return float((a - b).norm() / b.norm())


NAMED = 10
"""Number of unequal variants that are named; the rest is counted."""


class Numerics(NamedTuple):
    comparisons: Sequence[Comparison]
    device: str
    seconds: float
    own: Sequence[str] = ()
    """User functions in the algorithm; they have no reference to compare with."""

    @property
    def unequal(self) -> list[Comparison]:
        return [c for c in self.comparisons if not c.equal]

    @property
    def verdict(self) -> str:
        found = f"{len(self.unequal)} of {len(self.comparisons)} are not" if self.unequal else "all are"
        return f"{len(self.comparisons)} variants on {self.device} in {self.seconds:.1f} s: {found} equal"

    def lines(self) -> list[str]:
        named = [f"not equal: {c.part} {c.name}" for c in self.unequal[:NAMED]]
        more = [f"and {len(self.unequal) - NAMED} more; --json has all of them"] if len(self.unequal) > NAMED else []
        own = [f"not compared: {name} is your own, so there is no reference for it" for name in self.own]
        return [*table(self.comparisons), *named, *more, *own, self.verdict]

    def json(self) -> str:
        return json.dumps(
            {
                "equal": not self.unequal,
                "device": self.device,
                "torch": torch.__version__,
                "seconds": round(self.seconds, 3),
                "not_compared": list(self.own),
                "variants": [c.state() for c in self.comparisons],
            }
        )


def check_numerics(device: str, own: Sequence[str] = ()) -> Numerics:
    """own: see Numerics.own. Raises ConfigError if this machine lacks the device."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # for a few numbers at a time, more threads only wait for each other
    try:
        # The updates come first, because they raise a clear error for a missing device.
        updates = list(compare_updates(device))
        losses = list(compare_losses(torch.device(device)))
    finally:
        torch.set_num_threads(threads)
    return Numerics([*losses, *compare_advantages(), *updates], device, time.perf_counter() - start, own)
