"""The frozen weights that a KL term is measured against."""

from __future__ import annotations

import copy

from agentgrpo.training.policy import Policy


def frozen_reference(policy: Policy) -> Policy:
    """A copy of `policy` as it is now, without gradients. Build it from the weights a run started from (also on a
    resume), and only where `Algorithm.needs_reference`: it costs the model's memory once more."""
    model = copy.deepcopy(policy.model).requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = None
    return Policy(model=model, tokenizer=policy.tokenizer)
