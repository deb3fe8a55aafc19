"""An update on demonstrations is one of supervised training: cross entropy, and no figure of a sampler."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from agentgrpo.grpo.algorithm import Algorithm
from tests.grpo.tiny import exact_model, random_samples
from tests.training.test_trainer import distance, make_trainer

SFT = Algorithm(loss="reinforce", aggregation="token_mean", correction="none")
SAMPLES = [replace(s, advantage=1.0, rollout_logprobs=None, policy_version=None) for s in random_samples()]


@pytest.mark.parametrize("tokens", [24, 10_000])
def test_the_gradient_is_that_of_cross_entropy_on_what_is_imitated(tokens: int) -> None:
    model = exact_model()
    rows = [model(input_ids=torch.tensor([s.token_ids])).logits[0, :-1] for s in SAMPLES]
    targets = [torch.tensor(s.token_ids[1:]).where(torch.tensor(s.loss_mask[1:]).bool(), -100) for s in SAMPLES]
    loss = cross_entropy(torch.cat(rows), torch.cat(targets))
    loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    trainer = make_trainer(model, SFT, tokens_per_micro_batch=tokens)
    update = trainer.update(SAMPLES, step=3)
    assert distance(trainer.optimizer.gradients, expected) < 1e-12  # type: ignore[attr-defined]
    assert update.loss == pytest.approx(loss.item(), abs=1e-12)


def test_nothing_is_said_of_a_sampler_that_there_was_not() -> None:
    tags = make_trainer(exact_model(), SFT).update(SAMPLES, step=3).tags()
    assert tags["policy/entropy"] > 0
    of_sampler = {"logprob_gap_max", "stale_logprob_gap_max", "staleness_max", "correction_mean"}
    assert {f"policy/{name}" for name in of_sampler} & tags.keys() == set()
