"""The YAML group `hardware`: where a run computes, in which precision, and how it fits into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from agentgrpo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The `hardware` group."""

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that sample and are trained. bfloat16: half the memory; the updates go to a float32 copy that the
    optimizer keeps, so that none is lost."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """bf16: the trainer's products in bfloat16 (autocast) on weights of `dtype`. The engine samples in `dtype`; what
    this makes of the log-probs is the metric policy/logprob_gap_max."""
    activation_checkpointing: bool = False
    """Compute each decoder layer a second time for its gradient instead of keeping what it computed: a third more work,
    far less memory."""
    tokens_per_micro_batch: int | None = None
    """Input tokens of one forward and backward pass of the trainer; a longer sample has a pass of its own. null = as
    many as keep about a GiB for the backward pass, from 1024 to 4096."""
    head_chunk_tokens: int = 256
    """Trained tokens whose logits exist at a time: so many times the vocabulary numbers."""
    threads: int | None = None
    """null = one per CPU, at most 2."""

    def __post_init__(self) -> None:
        for key in ("tokens_per_micro_batch", "head_chunk_tokens", "threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"hardware.{key}={value}; 1 or more is allowed")

    @property
    def num_threads(self) -> int:
        """Compute threads."""
        return self.threads or min(2, os.cpu_count() or 1)
