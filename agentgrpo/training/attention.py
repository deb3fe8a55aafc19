"""Attention over packed rows (grpo.packing) for unmodified transformers models.

Rows of about the same length are gathered into one right-padded [rows, length] block, prompt included, and each block
is one causal SDPA call: with the padding on the right no real token can see it, so this is exact, needs no mask, and
costs a handful of kernel calls however many rows there are. The output of a shared prompt is taken from one of its rows
(all compute the same); its keys and values collect the gradients of all of them.

`transformers` hands `packed_layout=` through the model to the function registered here. The mask function returns None,
otherwise a [1, 1, T, T] mask would be built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from agentgrpo.errors import ConfigError
from agentgrpo.grpo.packing import Row

NAME = "agentgrpo_packed"
SHORTEST_IN_BLOCK = 0.9
"""A block's shortest row, as a share of its longest: less wastes work on padding, more costs more kernel calls."""


class PackedLayout(NamedTuple):
    """T packed tokens, S slots of the padded blocks one after the other."""

    token_of_slot: Tensor
    """[S] which packed token sits in each slot; in the padding, the row's last."""
    slot_of_token: Tensor
    """[T] one slot of each packed token."""
    blocks: tuple[tuple[int, int], ...]
    """(rows, length) of each block."""

    @property
    def longest(self) -> int:
        return max(length for _, length in self.blocks)


def packed_layout(rows: Sequence[Row], device: torch.device) -> PackedLayout:
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
    return PackedLayout(token_of_slot.to(device), slot_of_token.to(device), shapes)


def _length(row: Row) -> int:
    return row.prompt_length + row.length


def _slots(block: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """[rows * length] packed token of each slot of a block, and whether it is real rather than padding."""
    prompt_start, prompt_length, start, length = torch.tensor(block).T[:, :, None]
    position = torch.arange(_length(block[0]))[None]
    inside = position.minimum(prompt_length + length - 1)
    token = torch.where(inside < prompt_length, prompt_start + inside, start + inside - prompt_length)
    return token.flatten(), (position == inside).flatten()


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_layout: PackedLayout | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> ([1, T, heads, dim], None)."""
    if packed_layout is None:
        raise ConfigError(f"{type(module).__name__} does not pass keyword arguments on to its attention: not supported")
    _refuse_other_attention(module, packed_layout, kwargs)
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2)
        for q, k, v in zip(*(_blocks(x, packed_layout) for x in (query, key, value)), strict=True)
    ]
    slots = torch.cat([o.reshape(-1, *o.shape[2:]) for o in outputs])
    return slots.index_select(0, packed_layout.slot_of_token)[None], None


def _blocks(x: Tensor, layout: PackedLayout) -> list[Tensor]:
    """[1, heads, T, dim] -> the padded blocks, each [rows, heads, length, dim]."""
    slots = x[0].transpose(0, 1).index_select(0, layout.token_of_slot)
    blocks = torch.split(slots, [rows * length for rows, length in layout.blocks])
    return [b.view(*shape, *b.shape[1:]).transpose(1, 2) for b, shape in zip(blocks, layout.blocks, strict=True)]


def _refuse_other_attention(module: nn.Module, layout: PackedLayout, kwargs: dict[str, object]) -> None:
    """Full causal attention is all that is computed here; say so rather than compute something else."""
    window = kwargs.get("sliding_window")
    if isinstance(window, int) and layout.longest > window:
        raise ConfigError(
            f"a sequence of {layout.longest} tokens in {type(module).__name__} with a sliding window of {window}: only "
            f"full attention is supported; shorten the episodes or choose another model"
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ConfigError(f"{type(module).__name__} uses {name}: only plain causal attention is supported")


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend over packed rows inside the block; its own implementation is back afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _no_mask(*args: object, **kwargs: object) -> None:
    return None


AttentionInterface.register(NAME, _packed_attention)
AttentionMaskInterface.register(NAME, _no_mask)
