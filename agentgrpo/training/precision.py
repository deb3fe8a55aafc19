"""Mixed precision: products in bfloat16 on weights that stay float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentgrpo.errors import ConfigError

AUTOCAST: Mapping[str, torch.dtype | None] = {"no": None, "bf16": torch.bfloat16}
"""Value of hardware.mixed_precision -> dtype of the products; None = that of the weights."""


def autocast(mixed_precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass. Raises ConfigError for a name that does not exist."""
    if mixed_precision not in AUTOCAST:
        raise ConfigError(f"hardware.mixed_precision={mixed_precision}: allowed are {', '.join(AUTOCAST)}")
    dtype = AUTOCAST[mixed_precision]
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)
