"""Linear layers whose weights oneDNN has packed once, for many calls in fp32 on a CPU.

torch rearranges a weight at every call of the product. With few rows, as in decoding, this takes longer than the
product: [8, 512] x [512, 151936] takes 58 ms, with the weight packed beforehand 22 ms (torch 2.13, AVX-512, one
thread); layers of a million weights gain 10 to 40 %. In addition, the bits of a row depend neither on the other rows
nor on the number of threads. A packed weight is a second copy and does not follow the first: after a change of the
weights they must be packed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

LEAST_WEIGHTS = 1 << 17
"""Minimum size of a packed layer: the detour through oneDNN costs some microseconds per call, which smaller layers
never recover."""
ROWS = 32
"""The layout is optimised for this number of rows and correct for any."""


def suits(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether this module is a linear layer that gains by packing."""
    if type(module) is not nn.Linear or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST_WEIGHTS


def packed(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return `linear` with its current weights: [..., in] -> [..., out], without gradient."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
    bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out

    return forward


class PackedLinears:
    """The large linear layers of `model`, packed at first use and kept until `drop`."""

    def __init__(self, model: nn.Module) -> None:
        self._linears = [m for m in model.modules() if suits(m)]
        self._packed: list[Callable[[Tensor], Tensor]] = []

    def drop(self) -> None:
        """Free the packed weights, because the weights have changed or the memory is needed."""
        self._packed = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, the model's layers run packed. Without gradients only."""
        if not self._packed:
            self._packed = [packed(linear) for linear in self._linears]
        for linear, forward in zip(self._linears, self._packed, strict=True):
            linear.__dict__["forward"] = forward  # bypasses nn.Module's checks, which cost time at every step
        try:
            yield
        finally:
            for linear in self._linears:
                linear.__dict__.pop("forward", None)
