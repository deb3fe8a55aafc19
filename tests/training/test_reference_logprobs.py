"""What the reference thinks of sampled tokens: for a KL term in the reward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.process_group import ProcessGroup
from tests.grpo.tiny import plain_logprobs, random_samples, tiny_model, training_sample
from tests.training.several import on
from tests.training.test_trainer import make_trainer, state

IN_REWARD = Algorithm(kl_coef=0.1, kl_in="reward", aggregation="token_mean")
SAMPLES = [*random_samples(size=4), training_sample(((1, 2, 3), 0), group="silent")][::-1]


def of_reference(world: ProcessGroup | None = None, **settings: Any) -> list[Tensor]:
    trainer = make_trainer(tiny_model(), IN_REWARD, temperature=0.7, world=world, **settings)
    trainer.update(random_samples(seed=5), step=0)  # moves the policy; the reference stays
    return trainer.reference_logprobs(SAMPLES)


def test_they_are_the_start_weights_log_probs_in_the_order_given() -> None:
    found, expected = of_reference(), plain_logprobs(tiny_model(), SAMPLES, 0.7)
    assert [len(x) for x in found] == [sum(s.loss_mask) for s in SAMPLES]
    assert len(found[0]) == 0
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_processes_share_the_work_and_get_the_same() -> None:
    alone = of_reference(tokens_per_micro_batch=24)
    first, second = on(2, of_reference)
    for one, two, whole in zip(first, second, alone, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, whole, rtol=0, atol=1e-5)


def test_the_loss_has_no_kl_then() -> None:
    with_kl, without = (
        make_trainer(tiny_model(), IN_REWARD),
        make_trainer(tiny_model(), Algorithm(aggregation="token_mean")),
    )
    for step in range(2):
        rows = [trainer.update(random_samples(seed=step), step=step) for trainer in (with_kl, without)]
        assert rows[0] == rows[1]
        assert rows[0].kl is None
    mine, theirs = state(with_kl), state(without)
    assert all(torch.equal(mine[n], theirs[n]) for n in theirs)
