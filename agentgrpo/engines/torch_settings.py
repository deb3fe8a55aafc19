"""torch's global settings belong to the process: external code may have changed them since the last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

_CPU = torch.device("cpu")
_READ: dict[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "dtype": torch.get_default_dtype,
    "device": torch.get_default_device,
    "is_deterministic": torch.are_deterministic_algorithms_enabled,
    "matmul_precision": torch.get_float32_matmul_precision,
}
_SET: dict[str, Callable[[Any], object]] = {
    "threads": torch.set_num_threads,
    "dtype": torch.set_default_dtype,
    "device": lambda device: torch.set_default_device(None if device == _CPU else device),  # None has no overhead
    "is_deterministic": torch.use_deterministic_algorithms,
    "matmul_precision": torch.set_float32_matmul_precision,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings that affect results."""

    threads: int
    dtype: torch.dtype
    device: torch.device
    is_deterministic: bool
    matmul_precision: str

    @classmethod
    def now(cls) -> TorchSettings:
        return cls(**{name: read() for name, read in _READ.items()})

    @classmethod
    def of_run(cls) -> TorchSettings:
        """Return the settings that a run begins with: the current values where the configuration sets them, and torch's
        defaults for the rest."""
        return cls(**{**_values(cls.now()), "dtype": torch.float32, "device": _CPU})

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Apply these settings, without autocast and with gradients; restore the previous state afterwards."""
        found = TorchSettings.now()
        with ExitStack() as held:
            if torch.is_inference_mode_enabled():
                held.enter_context(torch.inference_mode(False))
            if not torch.is_grad_enabled():
                held.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    held.enter_context(torch.autocast(kind, enabled=False))
            held.callback(found._replace, self)
            self._replace(found)
            yield

    def _replace(self, found: TorchSettings) -> None:
        before = _values(found)
        for name, value in _values(self).items():
            if value != before[name]:
                _SET[name](value)


def _values(settings: TorchSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}
