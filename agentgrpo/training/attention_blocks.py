"""Attention over packed rows by the library's fused kernels, on any device and in any dtype.

Rows of about the same length are gathered into one right-padded [rows, length] block, prompt included, and each block
is one causal SDPA call: with the padding on the right no real token can see it, so this is exact, needs no mask, and
costs a handful of kernel calls however many rows there are. The output of a shared prompt is taken from one of its rows
(all compute the same); its keys and values collect the gradients of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentgrpo.grpo.packing import Row

SHORTEST_IN_BLOCK = 0.9
"""A block's shortest row, as a share of its longest: less wastes work on padding, more costs more kernel calls."""


class Blocks(NamedTuple):
    """T packed tokens, S slots of the padded blocks one after the other."""

    token_of_slot: Tensor
    """[S] which packed token sits in each slot; in the padding, the row's last."""
    slot_of_token: Tensor
    """[T] one slot of each packed token."""
    shapes: tuple[tuple[int, int], ...]
    """(rows, length) of each block."""


def blocks_of(rows: Sequence[Row], device: torch.device) -> Blocks:
    """The blocks of `rows`, longest rows first."""
    by_length = sorted(rows, key=lambda r: -(r.prompt_length + r.length))
    blocks: list[list[Row]] = []
    for row in by_length:
        if not blocks or _length(row) < SHORTEST_IN_BLOCK * _length(blocks[-1][0]):
            blocks.append([])
        blocks[-1].append(row)
    tokens, real = zip(*map(_slots, blocks), strict=True)
    token_of_slot, is_real = torch.cat(tokens), torch.cat(real)
    num_tokens = max(r.start + r.length for r in rows)
    slots = is_real.nonzero()[:, 0]
    # The first slot of each token, so that the choice does not depend on the order of concurrent writes.
    slot_of_token = torch.full((num_tokens,), len(is_real)).scatter_reduce(0, token_of_slot[slots], slots, "amin")
    shapes = tuple((len(b), _length(b[0])) for b in blocks)
    return Blocks(token_of_slot.to(device), slot_of_token.to(device), shapes)


def _length(row: Row) -> int:
    return row.prompt_length + row.length


def _slots(block: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """[rows * length] packed token of each slot of a block, and whether it is real rather than padding."""
    prompt_start, prompt_length, start, length = torch.tensor(block).T[:, :, None]
    position = torch.arange(_length(block[0]))[None]
    inside = position.minimum(prompt_length + length - 1)
    token = torch.where(inside < prompt_length, prompt_start + inside, start + inside - prompt_length)
    return token.flatten(), (position == inside).flatten()


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scale: float | None) -> Tensor:
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]."""
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped).transpose(1, 2)
        for q, k, v in zip(*(_blocks(x, blocks) for x in (query, key, value)), strict=True)
    ]
    slots = torch.cat([o.reshape(-1, *o.shape[2:]) for o in outputs])
    return slots.index_select(0, blocks.slot_of_token)[None]


def _blocks(x: Tensor, blocks: Blocks) -> list[Tensor]:
    """[1, heads, T, D] -> the padded blocks, each [rows, heads, length, D]."""
    slots = x[0].transpose(0, 1).index_select(0, blocks.token_of_slot)
    parts = torch.split(slots, [rows * length for rows, length in blocks.shapes])
    return [p.view(*shape, *p.shape[1:]).transpose(1, 2) for p, shape in zip(parts, blocks.shapes, strict=True)]
