"""The slot pool: keys and values of every running episode, one slot each.

Per layer [slots, kv heads, tokens, head dim]. It holds numbers only; which slot belongs to whom is `schedule`'s
business. Made on first use and grown by doubling, so that small runs stay small. What lies beyond an episode's own
length is stale and always masked, but must be finite (0 * nan is nan): hence zeros at birth and `scrub`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SlotPool:
    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        max_slots: int,
        max_tokens: int,
    ) -> None:
        self._limits = (max_slots, max_tokens)
        self._heads, self._head_dim, self.dtype, self.device = num_kv_heads, head_dim, dtype, device
        self._num_layers = num_layers
        self.clear()

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, tokens per slot) allocated so far."""
        return self._keys[0].shape[0], self._keys[0].shape[2]

    def clear(self) -> None:
        """Give all memory back."""
        self._keys = [self._zeros(0, 0) for _ in range(self._num_layers)]
        self._values = [self._zeros(0, 0) for _ in range(self._num_layers)]
        self._scratch = (self._zeros(0, 0).flatten(), self._zeros(0, 0).flatten())

    def _zeros(self, slots: int, tokens: int) -> Tensor:
        return torch.zeros(slots, self._heads, tokens, self._head_dim, dtype=self.dtype, device=self.device)

    def reserve(self, slots: int, tokens: int) -> None:
        """Make room for that many slots of that many tokens; keeps what is there."""
        old = self.shape
        if slots <= old[0] and tokens <= old[1]:
            return
        new = [
            now if need <= now else min(limit, max(need, 2 * now))
            for now, need, limit in zip(old, (slots, tokens), self._limits, strict=True)
        ]
        for kept in (self._keys, self._values):
            for layer, tensor in enumerate(kept):
                kept[layer] = self._zeros(*new)
                kept[layer][: old[0], :, : old[1]] = tensor

    def write(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [kv heads, T, head dim] of T tokens; slots and positions [T]."""
        self._keys[layer][slots, :, positions] = keys.transpose(0, 1)
        self._values[layer][slots, :, positions] = values.transpose(0, 1)

    def rows(self, layer: int, slots: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The first `tokens` keys and values of several slots, [n, kv heads, tokens, head dim]: copies that live until
        the next call. (On CPU a copy of a few rows at a time is read faster than rows scattered over the pool.)"""
        shape = (len(slots), self._heads, tokens, self._head_dim)
        size = len(slots) * self._heads * tokens * self._head_dim
        if self._scratch[0].numel() < size:
            self._scratch = (self._keys[0].new_empty(size), self._keys[0].new_empty(size))
        keys, values = (buffer[:size].view(shape) for buffer in self._scratch)
        torch.index_select(self._keys[layer][:, :, :tokens], 0, slots, out=keys)
        torch.index_select(self._values[layer][:, :, :tokens], 0, slots, out=values)
        return keys, values

    def row(self, layer: int, slot: int, tokens: int) -> tuple[Tensor, Tensor]:
        """The first `tokens` keys and values of one slot, [1, kv heads, tokens, head dim]: views."""
        return self._keys[layer][slot : slot + 1, :, :tokens], self._values[layer][slot : slot + 1, :, :tokens]

    def copy_prefix(self, source: int, targets: Sequence[int], tokens: int) -> None:
        """Give `targets` the first `tokens` keys and values of `source`."""
        for kept in (self._keys, self._values):
            for tensor in kept:
                prefix = tensor[source, :, :tokens]
                for target in targets:
                    tensor[target, :, :tokens] = prefix

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Zero one slot, after non-finite values were written to it."""
        for tensor in (*self._keys, *self._values):
            tensor[slot] = 0
