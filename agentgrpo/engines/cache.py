"""The keys and values of one episode: a tensor of its own, as long as the episode needs.

No pool: memory follows each episode's own length, goes back the moment the episode is released, and is read in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BUCKET = 64


def bucketed(tokens: int) -> int:
    """Rounded up to a multiple of 64, and beyond 512 tokens of an eighth of the next power of two: at most a quarter
    more than 256 tokens or more need, and few distinct lengths."""
    step = max(BUCKET, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


class CacheShape(NamedTuple):
    """What all caches of a model have in common."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool
    """Queries that attend by themselves read their own cache and no token more, one call each: best on a CPU. Else many
    are served by one call, and read and mask what lies beyond their own length."""


class KVCache:
    """kv [layers, 2, kv heads, capacity, head dim]: keys (0) and values (1); finite where nothing was written yet, if
    that may be read. keys_t is kv's keys as [layers, kv heads, head dim, capacity], values its values: views."""

    __slots__ = ("capacity", "keys_t", "kv", "values")

    kv: Tensor
    keys_t: Tensor
    values: Tensor

    def __init__(self) -> None:
        self.capacity = 0

    def reserve(self, shape: CacheShape, tokens: int) -> None:
        """Make room for that many tokens; keeps what is there."""
        if tokens <= self.capacity:
            return
        new = torch.empty if shape.in_place else torch.zeros  # 0 * nan is nan, masked or not
        size = (shape.layers, 2, shape.kv_heads, tokens, shape.head_dim)
        kv = new(size, dtype=shape.dtype, device=shape.device)
        if self.capacity:
            kv[:, :, :, : self.capacity] = self.kv
        self.kv, self.keys_t, self.values, self.capacity = kv, kv[:, 0].mT, kv[:, 1], tokens

    def copy_prefix(self, source: KVCache, tokens: int) -> None:
        self.kv[:, :, :, :tokens] = source.kv[:, :, :, :tokens]
