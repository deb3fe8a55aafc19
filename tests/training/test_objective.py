"""Losses that span whole samples, in chunks and micro-batches, against padded rows with full logits and autograd."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.grammar import Support
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.head import Head, TokenScores
from agentgrpo.training.process_group import Alone
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.update_metrics import UpdateMetrics
from tests.grpo.tiny import exact_model, plain_logprobs, random_samples, tiny_model
from tests.thorough import siblings
from tests.training.test_trainer import distance, gradient_of, make_trainer, same_bits, state, with_logprobs

T = TypeVar("T")
SMALL = {"tokens_per_micro_batch": 30, "head_chunk_tokens": 4}
"""Several micro-batches, and several chunks to a sample."""


def sampled_elsewhere(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """With the log-probs of a sampler that is not quite `model`: every tenth weight or so is above the tests' cap."""
    rng = random.Random(5)
    with torch.no_grad():
        logprobs = plain_logprobs(model, samples)
    return [
        with_logprobs(s, [x + rng.uniform(-0.1, 0.1) - 0.4 * (rng.random() < 0.1) for x in row.tolist()])
        for s, row in zip(samples, logprobs, strict=True)
    ]


def rollout(sample: TrainingSample) -> Tensor:
    return torch.tensor(
        [x for x, m in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if m], dtype=torch.float64
    )


def correction(mode: str, cap: float, old: Tensor, sampler: Tensor) -> Tensor:
    if mode == "none":
        return torch.ones_like(old)
    level, way = mode.split("_")
    w = ((old - sampler).sum() if level == "sequence" else old - sampler).exp().expand(len(old))
    return w.clamp(max=cap) if way == "truncate" else torch.where(w > cap, 0.0, w)


def token_losses(loss: str, x: Tensor, old: Tensor, a: float, weights: Tensor, mode: str) -> Tensor:
    """Of one sample, its ratio differentiated as a whole."""
    if loss == "clipped":
        r = (x - old).exp()
        return -torch.minimum(r * a, r.clamp(0.98, 1.03) * a) * weights
    if loss == "sequence_clipped":
        s = (x - old).mean().exp()
        if mode.startswith("token"):  # with a weight for each token it is a constant, as GSPO-token has it
            s = s.detach() * (x - x.detach()).exp()
        return -torch.minimum(s * a, s.clamp(0.999, 1.002) * a) * weights
    w = (x - old).sum().exp() * (weights[0] if mode.startswith("sequence") else weights.prod())
    k, scale = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    return -(w**k * (scale * (1 - w)).exp()).detach() * a * x


def total_loss(
    algorithm: Algorithm, now: Sequence[Tensor], old: Sequence[Tensor], samples: Sequence[TrainingSample]
) -> Tensor:
    total = sum(len(x) for x in now)
    shares = []
    for x, o, s in zip(now, old, samples, strict=True):
        assert isinstance(s.advantage, float)
        weights = correction(algorithm.correction, algorithm.correction_cap, o, rollout(s))
        losses = token_losses(algorithm.loss, x, o, s.advantage, weights, algorithm.correction)
        share = {"token_mean": 1 / total, "sequence_mean": 1 / len(now) / len(x), "sequence_sum": 1 / len(now)}
        shares.append(losses.sum() * share[algorithm.aggregation])
    return sum(shares, torch.zeros((), dtype=torch.float64))


CLIPS: Mapping[str, Mapping[str, float]] = {
    "clipped": {"clip_low": 0.02, "clip_high": 0.03},
    "sequence_clipped": {"clip_low": 0.001, "clip_high": 0.002},
    "vespo": {},
}
CORRECTIONS = ["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@pytest.mark.parametrize("loss", CLIPS)
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_an_on_policy_gradient_with_a_correction(loss: str, mode: str) -> None:
    model = exact_model(kv_heads=2)
    samples = sampled_elsewhere(model, random_samples())
    algorithm = Algorithm(
        loss=loss, aggregation="token_mean", correction=mode, correction_cap=1.2, loss_args=CLIPS[loss]
    )
    logprobs = plain_logprobs(model, samples)
    old = [x.detach() for x in logprobs]
    total_loss(algorithm, logprobs, old, samples).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    weights = torch.cat([correction(mode, 1.2, o, rollout(s)) for o, s in zip(old, samples, strict=True)])
    below = torch.cat([correction(mode, math.inf, o, rollout(s)) for o, s in zip(old, samples, strict=True)])
    for settings in ({}, SMALL):
        trainer = make_trainer(exact_model(kv_heads=2), algorithm, sampler_differs=True, **settings)
        metrics = trainer.update(samples, step=0)
        assert distance(trainer.optimizer.gradients, expected) < 1e-12  # type: ignore[attr-defined, arg-type]
        if mode == "none":
            assert (metrics.correction_mean, metrics.correction_clipped_fraction) == (None, None)
        else:
            assert metrics.correction_mean == pytest.approx(float(weights.mean()), rel=1e-12)
            assert metrics.correction_clipped_fraction == float((below > 1.2).double().mean())
            assert 0 < metrics.correction_clipped_fraction < 1


def test_no_correction_where_the_sampler_is_the_trainer() -> None:
    samples = sampled_elsewhere(exact_model(), random_samples())
    corrected = Algorithm(aggregation="token_mean", correction="sequence_mask", correction_cap=1.2)
    plain = make_trainer(exact_model(), dataclasses.replace(corrected, correction="none"), sampler_differs=True)
    trainer = make_trainer(exact_model(), corrected)
    assert trainer.update(samples, step=0) == plain.update(samples, step=0)
    assert same_bits(state(trainer), state(plain))


@pytest.mark.parametrize(
    "loss, mode, aggregation",
    [
        ("sequence_clipped", "none", "sequence_mean"),
        ("sequence_clipped", "sequence_truncate", "sequence_sum"),
        ("sequence_clipped", "token_mask", "token_mean"),
        ("vespo", "none", "token_mean"),
        ("vespo", "token_truncate", "token_mean"),
        ("vespo", "sequence_mask", "sequence_mean"),
        ("clipped", "sequence_mask", "sequence_mean"),
    ],
)
def test_two_epochs_of_two_mini_batches(loss: str, mode: str, aggregation: str) -> None:
    samples = sampled_elsewhere(exact_model(seed=3), random_samples(groups=4, size=2))
    algorithm = Algorithm(
        loss=loss, aggregation=aggregation, correction=mode, correction_cap=1.2, num_epochs=2, mini_batches=2,
        loss_args=CLIPS[loss],
    )  # fmt: skip
    trainer = make_trainer(exact_model(seed=3), algorithm, sampler_differs=True, **SMALL)
    metrics = trainer.update(samples, step=0)

    plain = exact_model(seed=3)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    parts = [[s for s in samples if s.group_id in names] for names in (("g0", "g2"), ("g1", "g3"))]
    old = [[x.detach() for x in plain_logprobs(plain, part)] for part in parts]
    losses = []
    for part, part_old in [*zip(parts, old, strict=True)] * 2:
        value = total_loss(algorithm, plain_logprobs(plain, part), part_old, part)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        losses.append(value.item())
    moved = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (trainer.policy.model, plain)]
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-8)  # the clip factor is float32
    assert metrics.loss == pytest.approx(sum(losses) / 4, rel=1e-6, abs=1e-8)
    assert metrics.optimizer_steps == 4
    assert metrics.ratio_max > 1.01


def plain_entropies(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> list[Tensor]:
    """Of the distribution each loss token was drawn from."""
    found = []
    for s in samples:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([s.token_ids]), use_cache=False).logits[0, :-1]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        found.append(entropy[torch.tensor(s.loss_mask[1:]).bool()])
    return found


@pytest.mark.parametrize("settings", [{}, SMALL])
@pytest.mark.parametrize("fraction", [0.2, 0.55, 1.0])
def test_only_the_most_uncertain_tokens_have_a_policy_loss(fraction: float, settings: dict[str, int]) -> None:
    """A sample without an advantage counts among all tokens, for the quantile and in the denominator."""
    model = exact_model()
    samples = [dataclasses.replace(s, advantage=0.0) if s.sample_index == 2 else s for s in random_samples()]
    entropies = plain_entropies(model, samples)
    least = torch.cat(entropies).quantile(1 - fraction)
    kept = [e >= least for e in entropies]
    total = sum(len(e) for e in entropies)
    assert sum(int(k.sum()) for k in kept) == pytest.approx(fraction * total, abs=1)
    logprobs = plain_logprobs(model, samples)
    sum(-s.advantage * x[k].sum() / total for s, x, k in zip(samples, logprobs, kept, strict=True)).backward()  # type: ignore[union-attr, operator]
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    algorithm = Algorithm(aggregation="token_mean", top_entropy_fraction=fraction)
    trainer = make_trainer(exact_model(), algorithm, **settings)
    assert distance(gradient_of(trainer, samples), expected) < 1e-12


def test_the_kl_term_of_certain_tokens_stays() -> None:
    """With hardly a token in the policy loss, what the KL to a reference gives is all that is left."""
    start = exact_model()
    with torch.no_grad():
        start.model.norm.weight.mul_(1.1)
    samples = [dataclasses.replace(s, advantage=1e-12) for s in random_samples()]
    reference = make_trainer(start).policy
    gradients = [
        gradient_of(
            make_trainer(
                exact_model(),
                Algorithm(aggregation="token_mean", kl_coef=0.3, top_entropy_fraction=fraction),
                reference=reference,
            ),
            samples,
        )
        for fraction in (None, 0.01)
    ]
    assert distance(gradients[1], gradients[0]) < 1e-9


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("settings", [{}, SMALL])
def test_the_entropy_bonus_is_weighed_as_the_loss_is(temperature: float, settings: dict[str, int]) -> None:
    """Each token's -0.3 * entropy among its losses; also of samples without an advantage."""
    model = exact_model()
    samples = [dataclasses.replace(s, advantage=0.0) if s.sample_index == 2 else s for s in random_samples()]
    total, bonus = torch.zeros((), dtype=torch.float64), 0.0
    for s, x in zip(samples, plain_logprobs(model, samples, temperature), strict=True):
        logits = model(input_ids=torch.tensor([s.token_ids]), use_cache=False).logits[0, :-1] / temperature
        entropy = torch.distributions.Categorical(logits=logits).entropy()[torch.tensor(s.loss_mask[1:]).bool()]
        # on-policy the ratio is 1, and has the gradient of the log-prob
        losses = -s.advantage * (1 + x - x.detach()) - 0.3 * entropy  # type: ignore[operator]
        total = total + losses.sum() / len(x) / len(samples)
        bonus += entropy.sum().item()
    total.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    trainer = make_trainer(exact_model(), Algorithm(entropy_coef=0.3), temperature=temperature, **settings)
    metrics = trainer.update(samples, step=0)
    assert distance(trainer.optimizer.gradients, expected) < 1e-12  # type: ignore[attr-defined, arg-type]
    assert metrics.loss == pytest.approx(total.item(), rel=1e-12)
    assert metrics.entropy == pytest.approx(bonus / sum(sum(s.loss_mask) for s in samples), rel=1e-12)


def test_an_entropy_bonus_makes_the_policy_less_certain() -> None:
    samples = [dataclasses.replace(s, advantage=0.0) for s in random_samples()]
    trainer = make_trainer(tiny_model(), Algorithm(entropy_coef=1.0))
    entropies = [trainer.update(samples, step=step).entropy for step in range(3)]
    assert entropies == sorted(entropies)
    assert entropies[0] < entropies[2] - 0.1


def test_tokens_with_an_advantage_of_their_own() -> None:
    rng = random.Random(2)
    samples = [
        dataclasses.replace(s, advantage=tuple(rng.choice([-1.0, 0.0, 2.0]) * m for m in s.loss_mask))
        for s in random_samples()
    ]
    model = exact_model()
    logprobs = plain_logprobs(model, samples)
    total = sum(len(x) for x in logprobs)
    credits = [
        torch.tensor([a for a, m in zip(s.token_advantages, s.loss_mask, strict=True) if m], dtype=torch.float64)
        for s in samples
    ]
    sum(-(a @ x) / total for a, x in zip(credits, logprobs, strict=True)).backward()  # type: ignore[union-attr]
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    for loss in ("clipped", "sequence_clipped"):
        algorithm = Algorithm(loss=loss, aggregation="token_mean")
        assert distance(gradient_of(make_trainer(exact_model(), algorithm, **SMALL), samples), expected) < 1e-12


@pytest.mark.parametrize(
    "algorithm, differs, passes",
    [
        (Algorithm(loss="sequence_clipped"), True, 2),  # its sequence_mask needs whole samples
        (Algorithm(loss="sequence_clipped"), False, 1),
        (Algorithm(loss="vespo", correction="none"), True, 1),
        (Algorithm(correction="token_mask"), True, 1),
        # old log-probs of two mini-batches; then only the second step's ratio is not known to be 1
        (Algorithm(loss="sequence_clipped", mini_batches=2), False, 2 + 1 + 2),
        (Algorithm(mini_batches=2), True, 2 + 1 + 1),
        (Algorithm(top_entropy_fraction=0.5), False, 2),
    ],
)
def test_no_pass_over_the_head_that_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, differs: bool, passes: int
) -> None:
    calls = []
    score = Head.score

    def counted(head: Head, states: Tensor, targets: Tensor, support: Support | None = None) -> TokenScores:
        calls.append(len(targets))
        return score(head, states, targets, support)

    trainer = make_trainer(tiny_model(), algorithm, sampler_differs=differs, head_chunk_tokens=1000)
    monkeypatch.setattr(Head, "score", counted)
    trainer.update(random_samples(), step=0)
    assert len(calls) == passes


class Meeting:
    """Where the threads of one test exchange values."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: T) -> list[T]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class Thread(Alone):
    """A process of the world, played by a thread."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__()
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def gather(self, value: T) -> list[T]:
        return self._meeting.exchange(self.rank, value)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        everywhere = self._meeting.exchange(self.rank, [t.clone() for t in tensors])
        for tensor, *parts in zip(tensors, *everywhere, strict=True):
            tensor.copy_(sum(parts[1:], parts[0]))


def count_forwards(trainer: Trainer, counts: list[int], rank: int) -> None:
    def counted(*_: object) -> None:
        counts[rank] += 1

    trainer.policy.model.base_model.register_forward_pre_hook(counted)


@pytest.mark.parametrize("size", siblings([3, 2, 12], quick=1))
@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(aggregation="token_mean"),
        Algorithm(loss="sequence_clipped", mini_batches=2, correction="token_truncate"),
        Algorithm(top_entropy_fraction=0.3, aggregation="prompt_mean", num_epochs=2),
    ],
    ids=["on-policy", "mini-batches", "top entropy"],
)
def test_processes_share_an_update(algorithm: Algorithm, size: int) -> None:
    """Each sees the same numbers, takes the same steps to the bit, and ends where one process alone ends; with twelve,
    some have nothing to compute."""
    samples = sampled_elsewhere(exact_model(), random_samples())
    alone = make_trainer(exact_model(), algorithm, sampler_differs=True)
    expected = alone.update(samples, step=0)
    meeting = Meeting(size)
    trainers = [
        make_trainer(exact_model(), algorithm, sampler_differs=True, world=Thread(rank, meeting))
        for rank in range(size)
    ]
    metrics: list[UpdateMetrics | None] = [None] * size
    shares = [0] * size
    for rank, trainer in enumerate(trainers):
        count_forwards(trainer, shares, rank)

    def update(rank: int, trainer: Trainer) -> None:
        try:
            metrics[rank] = trainer.update(samples, step=0)
        except BaseException:
            meeting.barrier.abort()
            raise

    threads = [threading.Thread(target=update, args=x) for x in enumerate(trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(m == metrics[0] for m in metrics)
    assert all(shares) or size > 9 / algorithm.mini_batches  # who can have something to compute has it
    assert all(same_bits(state(t), state(trainers[0])) for t in trainers)
    assert metrics[0] is not None
    found, wanted = dataclasses.asdict(metrics[0]), dataclasses.asdict(expected)
    assert {k: v for k, v in found.items() if k != "tokens_forwarded"} == {
        k: pytest.approx(v, rel=1e-9, abs=1e-12) if v else v for k, v in wanted.items() if k != "tokens_forwarded"
    }
    torch.testing.assert_close(state(trainers[0]), state(alone), rtol=1e-9, atol=1e-12)
