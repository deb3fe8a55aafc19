"""The input embeddings, with a gradient that goes straight to the rows that were looked up.

Autograd would make a dense [V, hidden] gradient for every micro-batch and add it to the one that is there: for a wide
vocabulary more memory, and more time, than all layers together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.weight, ctx.ids, ctx.padding = weight, ids, padding
        return weight.detach().index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        weight: Tensor = ctx.weight
        (gradient,) = gradients
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        if ctx.padding is not None:  # never trained, as nn.Embedding has it
            gradient = gradient.masked_fill((ctx.ids == ctx.padding)[:, None], 0)
        weight.grad.index_add_(0, ctx.ids, gradient.to(weight.grad.dtype))
        return None, None, None


def look_up(embedding: nn.Module, ids: Tensor) -> Tensor:
    """The embeddings [T, hidden] of `ids` [T]. Backward adds to the weight's `grad`."""
    if type(embedding) is not nn.Embedding or not embedding.weight.requires_grad or not torch.is_grad_enabled():
        found: Tensor = embedding(ids)
        return found
    embedded: Tensor = _LookUp.apply(embedding.weight, ids, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return embedded
