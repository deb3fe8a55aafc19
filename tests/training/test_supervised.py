"""The supervised warm start."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from agentgrpo.core.errors import ConfigError, DataError, TrainingError
from agentgrpo.training.policy import Policy
from agentgrpo.training.supervised import SupervisedStep, WeightedSample, _bucketed, _loss, _lr_scale, train_supervised
from tests.grpo.tiny import VOCABULARY, tiny_model, tiny_tokenizer


def policy() -> Policy:
    return Policy(model=tiny_model(), tokenizer=tiny_tokenizer())


def weights(of: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in of.model.parameters()])


def copies(count: int = 160, seed: int = 0) -> list[WeightedSample]:
    """Two letters, a mark, and the same two letters: only a model that reads can write them."""
    rng = random.Random(seed)
    pairs = [(rng.randrange(2, VOCABULARY), rng.randrange(2, VOCABULARY)) for _ in range(4)]
    return [
        WeightedSample(token_ids=(*pair, 1, *pair), weights=(0.3, 0.0, 0.0, 1.0, 3.0))
        for pair in (rng.choice(pairs) for _ in range(count))
    ]


def test_the_loss_is_the_weighted_mean_over_weighted_tokens() -> None:
    model = policy()
    batch = [
        WeightedSample(token_ids=(2, 3, 4, 5), weights=(9.0, 0.5, 0.0, 2.0)),
        WeightedSample(token_ids=(6, 7), weights=(0.0, 3.0)),
    ]
    total = 0.0
    for s in batch:
        logprobs = model.model(torch.tensor([s.token_ids])).logits[0].log_softmax(-1)
        total -= sum(
            w * logprobs[i, t].item() for i, (t, w) in enumerate(zip(s.token_ids[1:], s.weights[1:], strict=True))
        )
    assert _loss(model, batch).item() == pytest.approx(total / 5.5, rel=1e-5)


def test_the_label_of_an_unweighted_token_does_not_matter_beyond_the_end() -> None:
    first = WeightedSample(token_ids=(2, 3, 4, 5, 6), weights=(0.0, 1.0, 1.0, 0.0, 0.0))
    second = WeightedSample(token_ids=(2, 3, 4, 9, 8), weights=(0.0, 1.0, 1.0, 0.0, 0.0))
    assert _loss(policy(), [first]).item() == _loss(policy(), [second]).item()


def test_it_learns_a_toy_and_reports_it() -> None:
    model, steps = policy(), []
    metrics = train_supervised(
        model, copies(), seed=0, tokens_per_batch=40, lr=1e-2, muon_lr=0.03, warmup_steps=2, on_step=steps.append
    )
    assert metrics.first_loss > 3.0
    assert metrics.final_loss < 0.2 * metrics.first_loss
    assert metrics.num_tokens == 160 * 5
    assert metrics.num_steps == len(steps) == 20
    assert steps[0] == SupervisedStep(step=0, total_steps=20, loss=metrics.first_loss, lr_scale=0.5, num_tokens=40)
    assert metrics.final_loss == pytest.approx(sum(s.loss for s in steps) / 20)
    last = _loss(model, copies(8, seed=0)).item()
    assert last < 0.3


def test_it_is_repeatable_bit_for_bit_and_a_function_of_the_seed() -> None:
    results = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        random.seed(noise)
        model = policy()
        metrics = train_supervised(model, mixed(), seed=seed, tokens_per_batch=60)
        results.append((metrics, weights(model)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][1], results[2][1])


def mixed(count: int = 40) -> list[WeightedSample]:
    rng = random.Random(5)
    lengths = [rng.randint(2, 20) for _ in range(count)]
    return [
        WeightedSample(token_ids=tuple(rng.randrange(2, 40) for _ in range(n)), weights=(1.0,) * n) for n in lengths
    ]


def test_every_sample_is_seen_once_in_batches_of_similar_length_within_the_budget() -> None:
    samples = mixed(200)
    batches = _bucketed(samples, 100, random.Random(0))
    assert sorted(id(s) for b in batches for s in b) == sorted(map(id, samples))
    for batch in batches:
        lengths = [len(s.token_ids) for s in batch]
        assert max(lengths) * len(batch) <= 100
        assert max(lengths) - min(lengths) < 14
    longest = [max(len(s.token_ids) for s in b) for b in batches]
    half = len(longest) // 2
    assert abs(sum(longest[:half]) - sum(longest[-half:])) < 3 * half  # sorted batches would differ by about 9 each
    assert [len(b) for b in _bucketed(samples[:3], 1, random.Random(0))] == [1, 1, 1]


def test_phases_come_one_after_the_other_and_each_is_mixed() -> None:
    """The lengths of the batches tell the phases apart: the last is of the shortest samples."""
    short = [WeightedSample(token_ids=(2,) * 3, weights=(1.0,) * 3, phase=2) for _ in range(8)]
    long = [WeightedSample(token_ids=(2,) * n, weights=(1.0,) * n, phase=1) for n in (30, 31, 32, 33) for _ in range(4)]
    first = [WeightedSample(token_ids=(2,) * 10, weights=(1.0,) * 10) for _ in range(4)]
    seen: list[int] = []
    train_supervised(
        policy(), [*short, *long, *first], seed=0, tokens_per_batch=64, on_step=lambda s: seen.append(s.num_tokens)
    )
    assert seen[0] == 40
    assert seen[-1] == 24
    assert sum(seen[1:-1]) == sum(len(s.token_ids) for s in long)


def test_of_one_phase_nothing_is_told_apart() -> None:
    first, second = policy(), policy()
    train_supervised(first, copies(), seed=3, tokens_per_batch=64)
    train_supervised(second, [replace(s, phase=4) for s in copies()], seed=3, tokens_per_batch=64)
    assert torch.equal(weights(first), weights(second))


def test_the_schedule_by_hand() -> None:
    scales = [_lr_scale(step, 10, warmup_steps=2, decay_fraction=0.5) for step in range(10)]
    assert scales == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_the_schedule_scales_both_optimizers() -> None:
    moved = []
    for warmup_steps in (1, 10_000):
        model = policy()
        before = weights(model)
        train_supervised(model, mixed(), seed=0, tokens_per_batch=60, warmup_steps=warmup_steps)
        moved.append(float((weights(model) - before).abs().max()))
    assert moved[0] > 0.01
    assert moved[1] < 0.01 * moved[0]


def test_both_kinds_of_parameters_are_trained_and_gradients_are_cleared() -> None:
    model = policy()
    before = {n: p.detach().clone() for n, p in model.model.named_parameters()}
    train_supervised(model, mixed(), seed=0, tokens_per_batch=60)
    assert not [n for n, p in model.model.named_parameters() if torch.equal(p, before[n])]
    assert all(p.grad is None for p in model.model.parameters())


def test_samples_without_a_weighted_token_are_left_out() -> None:
    silent = WeightedSample(token_ids=(2, 3), weights=(1.0, 0.0))
    one = WeightedSample(token_ids=(2, 3, 4), weights=(0.0, 1.0, 1.0))
    assert train_supervised(policy(), [silent, one], seed=0).num_tokens == 3
    with pytest.raises(DataError, match="no sample has a weighted token"):
        train_supervised(policy(), [silent], seed=0)


def test_a_loss_that_is_not_finite_is_refused_before_the_step() -> None:
    model = policy()
    with torch.no_grad():
        model.model.model.norm.weight[0] = math.nan
    before = weights(model)
    with pytest.raises(TrainingError, match="supervised step 0: loss nan"):
        train_supervised(model, mixed(), seed=0)
    assert torch.equal(weights(model).nan_to_num(7.0), before.nan_to_num(7.0))
    assert all(p.grad is None for p in model.model.parameters())


def test_malformed_samples_are_refused() -> None:
    with pytest.raises(DataError, match="2 token ids but 1 weights"):
        WeightedSample(token_ids=(1, 2), weights=(1.0,))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(DataError, match="negative or not finite"):
            WeightedSample(token_ids=(1, 2), weights=(1.0, bad))


@pytest.mark.parametrize(
    "values",
    [{"tokens_per_batch": 0}, {"lr": 0.0}, {"muon_lr": math.inf}, {"warmup_steps": -1}, {"decay_fraction": 0.0},
     {"max_grad_norm": 0.0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(values: dict) -> None:
    [name] = values
    with pytest.raises(ConfigError, match=f"warm start: {name}="):
        train_supervised(policy(), mixed(), seed=0, **values)
