"""Wherever a number that is not finite comes from, no weight is changed for it, and the error says in which step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import RewardResult, ScoredGroup, TrainingSample
from agentgrpo.engines.grammar import Support
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.kl import less_kl
from agentgrpo.grpo.samples import group_advantages
from agentgrpo.training.head import Head, TokenScores
from agentgrpo.training.precision import first_non_finite
from agentgrpo.training.trainer import Trainer
from tests.builders import episode, group
from tests.grpo.tiny import random_samples, tiny_model
from tests.thorough import siblings
from tests.training.test_trainer import TOKEN_MEAN, make_trainer, state

BAD = (math.nan, math.inf, -math.inf)
ON_POLICY = TOKEN_MEAN
TWO_PASSES = Algorithm(num_epochs=2, mini_batches=2, kl_coef=0.1)
"""Scores old and reference log-probs of two mini-batches, then takes four optimizer steps."""
CORRECTED = Algorithm(correction="token_mask")
"""A weight that is not finite could hide behind the mask."""


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """To the bit: a NaN equals itself."""
    return {name: t.flatten().view(torch.uint8).numpy().tobytes() for name, t in tensors.items()}


def trained(algorithm: Algorithm = ON_POLICY, **settings: Any) -> Trainer:
    """After a step, so that there are moments and counters to lose."""
    model = tiny_model()
    trainer = make_trainer(model.bfloat16() if settings.pop("half", False) else model, algorithm, **settings)
    trainer.update(random_samples(), step=0)
    return trainer


def refused(trainer: Trainer, samples: list[TrainingSample] | None = None) -> str:
    """What `update` says; weights, moments and counters are then the same to the bit, and no gradient is left."""
    before = bits(state(trainer))
    with pytest.raises(TrainingError, match=r"^step 7, ") as error:
        trainer.update(samples or random_samples(), step=7)
    assert bits(state(trainer)) == before
    assert [n for n, p in trainer.policy.model.named_parameters() if p.grad is not None] == []
    return str(error.value)


def with_value(sample: TrainingSample, name: str, value: float) -> TrainingSample:
    if name == "advantage":
        return dataclasses.replace(sample, advantage=value)
    if name == "advantage of a token":
        return dataclasses.replace(sample, advantage=tuple(value if m else 0.0 for m in sample.loss_mask))
    at = sample.loss_mask.index(1)
    values = (*sample.rollout_logprobs[:at], value, *sample.rollout_logprobs[at + 1 :])
    return dataclasses.replace(sample, rollout_logprobs=values)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("name", ["advantage", "advantage of a token", "rollout log-prob"])
@pytest.mark.parametrize("algorithm", [ON_POLICY, TWO_PASSES])
def test_a_sample(algorithm: Algorithm, name: str, value: float) -> None:
    samples = random_samples()
    samples[4] = with_value(samples[4], name, value)
    assert f"sample g1/1: {'a rollout' if 'rollout' in name else 'its'}" in refused(trained(algorithm), samples)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("estimate", ["k1", "k2", "k3", "abs", "mse"])
def test_a_reference_log_prob_in_the_reward(estimate: str, value: float) -> None:
    algorithm = Algorithm(kl_coef=0.1, kl_in="reward", kl=estimate)
    sampled, reference = (
        torch.tensor([-1.0, -2.0], dtype=torch.float64),
        torch.tensor([value, -1.0], dtype=torch.float64),
    )
    spoilt, fine = (algorithm.token_kl(sampled, sampled, x).tolist() for x in (reference, sampled))
    episodes = group(episode(), episode(sample_index=1))
    rewards = tuple(RewardResult(total=x, terms={}, dimensions={}, correctness=x) for x in (0.0, 1.0))
    paid = less_kl([ScoredGroup(group=episodes, rewards=rewards)], [spoilt, fine], algorithm.kl_coef)
    with pytest.raises(TrainingError, match="only finite rewards"):
        group_advantages(paid, algorithm)


class Poison:
    """Head.score with one number of its `call`-th answer replaced; counts all calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: int | None, field: str, value: float) -> None:
        self.calls = 0
        score = Head.score

        def poisoned(head: Head, states: Tensor, targets: Tensor, support: Support | None = None) -> TokenScores:
            scores = score(head, states, targets, support)
            if self.calls == call:
                getattr(scores, field)[2] = value
            self.calls += 1
            return scores

        monkeypatch.setattr(Head, "score", poisoned)


def passes(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> int:
    """How often a whole update scores tokens."""
    with monkeypatch.context() as patch:
        trainer = trained(algorithm, **settings)
        counter = Poison(patch, None, "logprobs", 0.0)
        trainer.update(random_samples(), step=7)
    return counter.calls


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize(
    "algorithm, differs, count",
    [
        (ON_POLICY, False, 1),
        (TWO_PASSES, False, 8),
        (CORRECTED, True, 1),
        (Algorithm(correction="sequence_mask"), True, 2),
        (Algorithm(loss="sequence_clipped", num_epochs=2), False, 4),
        (Algorithm(kl="k1", kl_coef=0.1, kl_importance=True), False, 2),
    ],
)
def test_a_log_prob_of_any_forward_pass(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, differs: bool, count: int, value: float
) -> None:
    """Of the policy that is stepped, the old one (so the ratio), the reference (so the KL): whichever pass it is."""
    assert passes(algorithm, monkeypatch, sampler_differs=differs) == count
    for call in range(count):
        trainer = trained(algorithm, sampler_differs=differs)
        with monkeypatch.context() as patch:
            Poison(patch, call, "logprobs", value)
            refused(trainer)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("algorithm", [ON_POLICY, Algorithm(entropy_coef=0.01)])
def test_an_entropy(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, value: float) -> None:
    trainer = trained(algorithm)
    Poison(monkeypatch, 0, "entropy", value)
    where = "the loss" if algorithm.entropy_coef else "policy/entropy"
    assert f"epoch 0, mini-batch 0: {where} is" in refused(trainer)


def hooked(trainer: Trainer, call: int, value: float) -> None:
    """One number of the `call`-th gradient of an inner matrix."""
    calls = iter(range(100))

    def poison(gradient: Tensor) -> Tensor | None:
        if next(calls) != call:
            return None
        gradient = gradient.clone()
        gradient[3, 3] = value
        return gradient

    trainer.policy.model.model.layers[0].mlp.up_proj.weight.register_hook(poison)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("algorithm, call", [(ON_POLICY, 0), *((TWO_PASSES, call) for call in range(4))])
def test_a_gradient(algorithm: Algorithm, call: int, value: float) -> None:
    """Of the last optimizer step too: the ones before it are undone."""
    trainer = trained(algorithm)
    hooked(trainer, call, value)
    assert f"epoch {call // 2}, mini-batch {call % 2}: the gradient norm is" in refused(trainer)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("algorithm", [ON_POLICY, TWO_PASSES])
@pytest.mark.parametrize("kind", siblings(["exp_avg", "exp_avg_sq", "step", "master"], quick=2))
def test_the_optimizers_state(algorithm: Algorithm, kind: str, value: float) -> None:
    name = f"model.layers.1.mlp.down_proj.weight.{kind}"
    trainer = trained(algorithm, half=kind == "master")
    trainer.optimizer.state_tensors()[name].view(-1)[0] = value
    assert name in refused(trainer)


@pytest.mark.parametrize("value", siblings(BAD, quick=1))
@pytest.mark.parametrize("algorithm", [ON_POLICY, TWO_PASSES])
def test_a_weight(algorithm: Algorithm, value: float) -> None:
    trainer = trained(algorithm)
    with torch.no_grad():
        trainer.policy.model.model.layers[1].mlp.up_proj.weight[3, 3] = value
    assert "epoch 0, mini-batch 0: the loss is nan" in refused(trainer)


@pytest.mark.parametrize("algorithm", [ON_POLICY, TWO_PASSES])
@pytest.mark.parametrize("call", [0, 3])
def test_a_guard_that_refuses_leaves_no_trace(algorithm: Algorithm, call: int) -> None:
    trainer = trained(algorithm)
    told: list[dict[str, float]] = []

    def guard(tags: Any) -> None:
        told.append(dict(tags))
        if len(told) == call + 1:
            raise TrainingError("enough")

    before = bits(state(trainer))
    if call == 0 or algorithm is TWO_PASSES:
        with pytest.raises(TrainingError, match="enough"):
            trainer.update(random_samples(), step=7, guard=guard)
        assert bits(state(trainer)) == before
    else:
        trainer.update(random_samples(), step=7, guard=guard)
        assert bits(state(trainer)) != before
    expected = {"loss", "gradients/norm", "policy/entropy", "policy/clip_fraction", "policy/ratio_max"}
    expected |= {"policy/logprob_gap_max"} | ({"policy/kl"} if algorithm is TWO_PASSES else set())
    assert [set(tags) for tags in told] == [expected] * (call + 1 if algorithm is TWO_PASSES else 1)


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    def fine() -> Tensor:
        return torch.ones(2, 2)

    assert first_non_finite({}) is None
    assert first_non_finite({"a": fine(), "b": torch.tensor([3], dtype=torch.uint8)}) is None
    for value in BAD:
        bad = fine().bfloat16()
        bad[1, 1] = value
        assert first_non_finite({"a": fine(), "b": bad, "c": bad}) == "b"
