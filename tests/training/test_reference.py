"""The reference is a copy that nothing can move."""

from __future__ import annotations

import torch

from agentgrpo.training.policy import Policy
from agentgrpo.training.reference import frozen_reference
from tests.grpo.tiny import random_samples, tiny_model, tiny_tokenizer


def test_it_scores_like_the_policy_did_and_does_not_follow_it() -> None:
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    before = [x for _, x in policy.logprobs(random_samples())]
    policy.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    reference = frozen_reference(policy)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1.1)
    assert all(torch.equal(x, y) for (_, x), y in zip(reference.logprobs(random_samples()), before, strict=True))
    assert not any(torch.equal(x, y) for (_, x), y in zip(policy.logprobs(random_samples()), before, strict=True))


def test_it_holds_no_gradients_and_needs_none() -> None:
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    policy.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    reference = frozen_reference(policy)
    assert all(p.grad is None and not p.requires_grad for p in reference.model.parameters())
    assert all(p.grad is not None and p.requires_grad for p in policy.model.parameters())
    assert not reference.model.training
