"""Mixed precision: products in bfloat16, everything else as it was."""

from __future__ import annotations

import pytest
import torch

from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training import attention
from tests.grpo.tiny import random_samples, tiny_model
from tests.training.test_trainer import TOKEN_MEAN, distance, gradient_of, make_trainer, same_bits, state


@pytest.mark.parametrize("short", [0, 192])
@pytest.mark.parametrize("again", [False, True])
def test_gradients_are_float32_and_near_those_of_float32(
    short: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SHORT", short)
    samples = random_samples()
    exact = gradient_of(make_trainer(tiny_model()), samples)
    trainer = make_trainer(tiny_model(), mixed_precision="bf16", activation_checkpointing=again)
    found = gradient_of(trainer, samples)
    assert {g.dtype for g in found.values()} == {torch.float32}
    assert {t.dtype for t in state(trainer).values()} == {torch.float32}
    assert 1e-4 < distance(found, exact) < 0.03  # it is bfloat16, and it is right


def test_no_is_no() -> None:
    exact = gradient_of(make_trainer(tiny_model()), random_samples())
    assert same_bits(gradient_of(make_trainer(tiny_model(), mixed_precision="no"), random_samples()), exact)


def test_the_old_policy_is_scored_in_the_same_precision() -> None:
    """Otherwise the first epoch's ratios would not be 1."""
    trainer = make_trainer(tiny_model(), Algorithm(mini_batches=2, kl_coef=0.1), mixed_precision="bf16")
    one_group = [s for s in random_samples() if s.group_id == "g0"]
    metrics = trainer.update(one_group, step=0)
    assert metrics.ratio_max == 1.0
    assert metrics.kl == 0.0


def test_the_gap_to_a_rollout_in_float32_is_seen() -> None:
    """The policy itself stays float32: what the engine sampled from, and what the weight-sync canary compares."""
    trainer = make_trainer(tiny_model(), TOKEN_MEAN, mixed_precision="bf16")
    samples = random_samples()
    before = [x for _, x in trainer.policy.logprobs(samples)]
    gap = trainer.update(samples, step=0).logprob_gap_max
    exact = make_trainer(tiny_model(), TOKEN_MEAN).update(samples, step=0).logprob_gap_max
    assert gap is not None
    assert exact is not None
    assert 1e-5 < abs(gap - exact) < 0.2
    plain = [x for _, x in make_trainer(tiny_model()).policy.logprobs(samples)]
    assert all(torch.equal(a, b) for a, b in zip(before, plain, strict=True))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixed_precision=fp8: allowed are no, bf16"):
        make_trainer(tiny_model(), mixed_precision="fp8")
