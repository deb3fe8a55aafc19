"""A copy of the policy to sample from while the policy is updated."""

from __future__ import annotations

import copy

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model; frozen parameters are shared."""
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    copied: PreTrainedModel = copy.deepcopy(model, shared)
    return copied


@torch.no_grad()
def bring_up_to_date(copied: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the current weights of `model` into its copy; shared parameters are skipped. A collective if the model is
    sharded."""
    for own, live in zip(copied.parameters(), model.parameters(), strict=True):
        if own is not live and live.requires_grad:
            own.copy_(live.full_tensor() if isinstance(live, DTensor) else live)
