"""Attention of one packed engine step, plugged into unmodified transformers models.

A step is one row [1, T]: one token of every decoding episode, then the prefill spans, then padding. The model's own
layers compute all that is per token; only attention mixes tokens, and it runs here: keys and values go to the slot
pool, decoding tokens attend in chunks of rows, every span attends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from agentgrpo.engines.slots import SlotPool
from agentgrpo.errors import EngineError

NAME = "agentgrpo_slots"
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Keywords with which models ask for attention other than full causal softmax attention."""


@dataclass(frozen=True, slots=True)
class DecodeChunk:
    """Decoding rows [first, last) of the packed row; each reads `tokens` keys of its slot under mask [n, 1, 1,
    tokens]."""

    first: int
    last: int
    slots: Tensor
    tokens: int
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Packed tokens [first, last) of one slot, whose first token has position `start`. mask [n, start + n], or None
    where start is 0 and plain causal attention over the span itself will do."""

    first: int
    last: int
    slot: int
    start: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the attention of one step needs. slots and positions [n]: where the n real (not padding) tokens belong."""

    pool: SlotPool
    slots: Tensor
    positions: Tensor
    chunks: list[DecodeChunk]
    spans: list[PrefillSpan]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: StepPlan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]. Grouped queries of decoding rows are packed as
    [rows, Hkv, H/Hkv, D], so that no key is repeated. Padding comes out as zeros."""
    asked = [name for name in UNSUPPORTED if options.get(name) is not None]
    if plan is None or asked:
        raise EngineError(
            f"attention '{NAME}' was called {'with ' + ', '.join(asked) if asked else 'outside of an engine step'}; "
            "it computes full causal attention of engine steps only; choose another attention implementation or engine"
        )
    layer, pool, n = int(module.layer_idx), plan.pool, len(plan.slots)  # type: ignore[arg-type]
    _, num_heads, num_tokens, head_dim = query.shape
    num_kv_heads = key.shape[1]
    pool.write(layer, plan.slots, plan.positions, key[0, :, :n], value[0, :, :n])
    out = query.new_empty(num_tokens, num_heads, head_dim)
    by_row = query[0].transpose(0, 1)
    for chunk in plan.chunks:
        keys, values = pool.rows(layer, chunk.slots, chunk.tokens)
        rows = by_row[chunk.first : chunk.last].reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        attended = _attend_row(rows, keys, values, chunk.mask, head_dim**-0.5 if scaling is None else scaling)
        out[chunk.first : chunk.last] = attended.reshape(-1, num_heads, head_dim)
    for span in plan.spans:
        keys, values = pool.row(layer, span.slot, span.start + span.last - span.first)
        attended = F.scaled_dot_product_attention(
            query[:, :, span.first : span.last],
            keys,
            values,
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=num_heads != num_kv_heads,
        )
        out[span.first : span.last] = attended[0].transpose(0, 1)
    out[n:] = 0
    return out[None], None


def _attend_row(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """One query token per row: query [n, Hkv, H/Hkv, D], keys and values [n, Hkv, tokens, D] -> [n, Hkv, H/Hkv, D].

    In fp32 by plain products: on CPU they are faster than the fused kernel here, and their bits depend neither on the
    other rows nor on the number of threads, whereas the kernel's depend on the latter when H/Hkv is odd."""
    if query.dtype != torch.float32:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    scores = (query * scaling) @ keys.transpose(-1, -2)
    return scores.add_(mask).softmax(-1) @ values


def _no_mask(*_: Any, **__: Any) -> None:
    """transformers would build a [T, T] mask over the packed row; the plan brings its own masks."""


AttentionInterface.register(NAME, slot_attention)
AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def engine_mode(model: PreTrainedModel, *, attention: str = NAME) -> Iterator[None]:
    """The live policy with that attention, without dropout and gradients. Everything is put back afterwards, module by
    module: whoever trains the same weights finds them as they were left."""
    before = model.config._attn_implementation
    training = [m for m in model.modules() if m.training]
    model.config._attn_implementation = attention
    for m in training:
        m.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        model.config._attn_implementation = before
        for m in training:
            m.training = True
