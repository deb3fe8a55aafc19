"""Mixed precision: matrix products in bfloat16 with weights kept in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgrpo.core.errors import ConfigError

AUTOCAST: Mapping[str, torch.dtype | None] = {"no": None, "bf16": torch.bfloat16}
"""Value of hardware.mixed_precision -> dtype of the products; None = dtype of the weights."""


def autocast(mixed_precision: str, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass. Raises ConfigError for an unknown name."""
    if mixed_precision not in AUTOCAST:
        raise ConfigError(f"hardware.mixed_precision={mixed_precision}: allowed are {', '.join(AUTOCAST)}")
    dtype = AUTOCAST[mixed_precision]
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


# --- Search for NaN and infinite numbers.


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that contains a NaN or an infinity, or None. A collective if tensors are
    sharded; every process then gets the same answer."""
    held = [(name, t.to_local() if isinstance(t, DTensor) else t) for name, t in tensors.items()]
    # Minimum and maximum suffice, because both are NaN if any number is; this waits for the device only once.
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
