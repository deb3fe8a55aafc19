"""Linear layers whose weights oneDNN has packed once, for many calls in fp32 on a CPU.

torch lays a weight out anew for the product at every call. With few rows, as when an engine decodes, that is more work
than the product: [8, 512] x [512, 151936] takes 58 ms, with the weight packed beforehand 22 ms (torch 2.13, AVX-512,
one thread); layers of a million weights gain 10 to 40 %. On top, a row's bits depend neither on the other rows nor on
the number of threads. A packed weight is a second copy and does not follow the first: whoever changes weights packs
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

LEAST_WEIGHTS = 1 << 17
"""Of a layer that is packed: the detour through oneDNN costs some microseconds per call, which smaller ones never earn
back."""
ROWS = 32
"""For how many rows the layout is chosen; right for any number, best for about that many."""


def suits(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether this module is a linear layer that gains by packing."""
    if type(module) is not nn.Linear or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST_WEIGHTS


def packed(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """`linear` as it is now: [..., in] -> [..., out], without gradient."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
    bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out

    return forward


class PackedLinears:
    """The large linear layers of `model`, packed when they are first wanted and until `drop`."""

    def __init__(self, model: nn.Module) -> None:
        self._linears = [m for m in model.modules() if suits(m)]
        self._packed: list[Callable[[Tensor], Tensor]] = []

    def drop(self) -> None:
        """The weights have changed, or the memory is wanted."""
        self._packed = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the model's layers run packed. Without gradients only."""
        if not self._packed:
            self._packed = [packed(linear) for linear in self._linears]
        for linear, forward in zip(self._linears, self._packed, strict=True):
            linear.__dict__["forward"] = forward  # past nn.Module's checks, as this happens at every engine step
        try:
            yield
        finally:
            for linear in self._linears:
                linear.__dict__.pop("forward", None)
