"""Attention over packed rows (grpo.packing) for unmodified transformers models.

`transformers` hands `packed_layout=` through the model to the function registered here, which has three ways to compute
the same: plain products for long rows in fp32 on a CPU, the variable-length kernel in half precision on CUDA, and
padded blocks of rows through scaled_dot_product_attention anywhere else. The mask function returns None, otherwise a
[1, 1, T, T] mask would be built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from agentgrpo.errors import ConfigError
from agentgrpo.grpo.packing import Row
from agentgrpo.kernels import causal
from agentgrpo.kernels.last_layer import last_layer_rows
from agentgrpo.training import attention_varlen
from agentgrpo.training.attention_blocks import Blocks, attend_in_blocks, blocks_of
from agentgrpo.training.attention_cpu import Context, PackedAttention, contexts
from agentgrpo.training.attention_varlen import Pieces, attend_in_pieces, pieces_of

NAME = "agentgrpo_packed"
SHORT = 192
"""Tokens. For rows that are shorter on average, a few padded blocks cost less than many small products."""


@dataclass(frozen=True)
class PackedLayout:
    """Who attends to whom. read [n]: the packed tokens whose last hidden states are read, ascending, None = all."""

    rows: Sequence[Row]
    device: torch.device
    read: Tensor | None = None

    @cached_property
    def longest(self) -> int:
        return max(r.prompt_length + r.length for r in self.rows)

    @cached_property
    def is_short(self) -> bool:
        return sum(r.prompt_length + r.length for r in self.rows) < SHORT * len(self.rows)

    @cached_property
    def blocks(self) -> Blocks:
        return blocks_of(self.rows, self.device)

    @cached_property
    def pieces(self) -> Pieces:
        return pieces_of(self.rows, self.device)

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        return contexts(self.rows)

    @cached_property
    def contexts_read(self) -> tuple[Context, ...]:
        """Those of the last layer."""
        return self.contexts if self.read is None else contexts(self.rows, self.read)


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
    if torch.is_autocast_enabled(query.device.type):  # leaves queries and keys in fp32 behind rotary embeddings
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attention_varlen.suits(query):
        return attend_in_pieces(query, key, value, packed_layout.pieces, scaling), None
    if packed_layout.is_short or not causal.suits(query):
        return attend_in_blocks(query, key, value, packed_layout.blocks, scaling), None
    parts = packed_layout.contexts_read if _is_last(module) else packed_layout.contexts
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = PackedAttention.apply(query, key, value, parts, scale)  # type: ignore[no-untyped-call]
    return out, None


def _is_last(module: nn.Module) -> bool:
    config = getattr(module, "config", None)
    return config is not None and getattr(module, "layer_idx", None) == config.num_hidden_layers - 1


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
            raise ConfigError(
                f"{type(module).__name__} uses {name}: only plain causal attention is supported; choose a model "
                "without it: Qwen 2.5 and 3, Llama, SmolLM, Mistral, Gemma 1 and 3"
            )


@contextmanager
def packed_attention(model: PreTrainedModel, layout: PackedLayout) -> Iterator[None]:
    """Let `model` attend over packed rows inside the block, its last layer computing what `layout` says is read; its
    own implementation is back afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        with nullcontext() if layout.read is None else last_layer_rows(model, layout.read):
            yield
    finally:
        model.set_attn_implementation(before)


def _no_mask(*args: object, **kwargs: object) -> None:
    return None


AttentionInterface.register(NAME, _packed_attention)
AttentionMaskInterface.register(NAME, _no_mask)
