"""The keys and values of one episode: a tensor of its own, as long as the episode needs, or a part of a larger one.

Of its own: memory follows each episode's own length, goes back the moment the episode is released, and is read in
place. A part of a larger one: where a step reads many of them at fixed addresses; see rows.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

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

    @classmethod
    def of(cls, model: PreTrainedModel) -> CacheShape:
        config = model.config.get_text_config()
        num_heads = int(config.num_attention_heads)
        return cls(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
            dtype=model.dtype,
            device=model.device,
            in_place=model.device.type == "cpu",
        )

    def room(self, tokens: int) -> Tensor:
        """New memory for the keys and values of so many tokens, [layers, 2, kv heads, tokens, head dim]."""
        new = torch.empty if self.in_place else torch.zeros  # 0 * nan is nan, masked or not
        return new((self.layers, 2, self.kv_heads, tokens, self.head_dim), dtype=self.dtype, device=self.device)


class KVCache:
    """kv [layers, 2, kv heads, capacity, head dim]: keys (0) and values (1); finite where nothing was written yet, if
    that may be read. keys_t is kv's keys as [layers, kv heads, head dim, capacity], values its values: views. room:
    what kv is the beginning of."""

    __slots__ = ("__weakref__", "capacity", "keys_t", "kv", "room", "values")

    room: Tensor
    kv: Tensor
    keys_t: Tensor
    values: Tensor

    def __init__(self) -> None:
        self.capacity = 0

    def reserve(self, shape: CacheShape, tokens: int) -> None:
        """Make room for that many tokens; keeps what is there."""
        if tokens <= self.capacity:
            return
        if self.capacity == 0:
            self.room = shape.room(tokens)
        elif tokens > self.room.shape[3]:
            room = shape.room(tokens)
            room[:, :, :, : self.capacity] = self.kv
            self.room = room
        self._open(tokens)

    def move(self, room: Tensor, tokens: int) -> None:
        """Be in `room` [layers, 2, kv heads, at least capacity, head dim] from now on. The first `tokens` come along;
        what follows them is zero."""
        room[:, :, :, :tokens] = self.kv[:, :, :, :tokens]
        room[:, :, :, tokens:] = 0
        self.room = room
        self._open(self.capacity)

    def copy_prefix(self, source: KVCache, tokens: int) -> None:
        self.kv[:, :, :, :tokens] = source.kv[:, :, :, :tokens]

    def _open(self, tokens: int) -> None:
        self.capacity, self.kv = tokens, self.room[:, :, :, :tokens]
        self.keys_t, self.values = self.kv[:, 0].mT, self.kv[:, 1]
