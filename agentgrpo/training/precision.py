"""Mixed precision: products in bfloat16 on weights that stay float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgrpo.core.errors import ConfigError

AUTOCAST: Mapping[str, torch.dtype | None] = {"no": None, "bf16": torch.bfloat16}
"""Value of hardware.mixed_precision -> dtype of the products; None = that of the weights."""


def autocast(mixed_precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass. Raises ConfigError for a name that does not exist."""
    if mixed_precision not in AUTOCAST:
        raise ConfigError(f"hardware.mixed_precision={mixed_precision}: allowed are {', '.join(AUTOCAST)}")
    dtype = AUTOCAST[mixed_precision]
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


# --- Is there a number that is none?


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity; None where all numbers are finite. With sharded
    tensors among them a collective, and the same answer in every process."""
    held = [(name, t.to_local() if isinstance(t, DTensor) else t) for name, t in tensors.items()]
    # The ends tell as much as all numbers, for NaN is both; and there is one wait for the device.
    ends = {name: torch.stack(torch.aminmax(t)).double() for name, t in held if t.numel() and t.is_floating_point()}
    fine = torch.stack([*ends.values()]).isfinite().all(1).tolist() if ends else []
    odd = {name for name, is_fine in zip(ends, fine, strict=True) if not is_fine}
    first = next((i for i, name in enumerate(tensors) if name in odd), len(tensors))
    sharded = next((t for t in tensors.values() if isinstance(t, DTensor)), None)
    if sharded is not None:
        everywhere = torch.tensor(first, device=sharded.device)
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=sharded.device_mesh.get_group())
        first = int(everywhere)
    return [*tensors, None][first]
