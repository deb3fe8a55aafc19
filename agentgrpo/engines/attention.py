"""Attention of one packed engine step, for unmodified transformers models.

A step is one row [1, T]: first the tokens that attend separately (mainly the decoding ones), then the spans, then
padding. The model's own layers compute everything that is per token. Only attention mixes tokens, and it is computed
here: keys and values are written to the episodes' caches, then every query reads the cache of its own episode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.cache import KVCache
from agentgrpo.engines.kernels.causal import causal_attention, suits

NAME = "agentgrpo_caches"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Keywords with which models request anything but full causal softmax attention. A sliding window is not listed,
because no context of an engine exceeds it (limits.refuse_other_attention)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Queries [first, last), which read the same number of keys, under mask [n, 1, 1, keys]: computed in one call if
    calls are expensive."""

    first: int
    last: int
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Reads:
    """Keys and values read by n queries that attend separately, [layer][query]: keys [Hkv, D, length] and values [Hkv,
    length, D], views of caches. Without `chunks`, length is the query's own length; with chunks, its bucket."""

    keys: list[tuple[Tensor, ...]]
    values: list[tuple[Tensor, ...]]
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Packed tokens [first, last) of one episode; the first token has position `start`. mask [n, start + n], or None if
    plain causal attention suffices."""

    first: int
    last: int
    start: int
    cache: KVCache
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class LastLayer:
    """The last layer, whose output is read only in the rows `at` [n]: each of these attends separately, the others not
    at all."""

    index: int
    at: Tensor
    reads: Reads


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The plan of one step's attention. The first `num_singles` tokens attend separately, and their keys and values go
    to `targets` [layer][token], views [2, Hkv, D] of caches."""

    num_singles: int
    targets: list[tuple[Tensor, ...]]
    reads: Reads
    spans: list[PrefillSpan]
    last: LastLayer | None


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A step with one token for each of R rows of `kv` [layers, 2, >= R, Hkv, length, D]. Every row reads as many keys
    as `mask` [R, 1, 1, n] has. So shapes are fixed, and everything specific to the step is in tensors. targets [R]: the
    place in its row for a token's key and value. rows [R]: 0 ... R - 1."""

    kv: Tensor
    rows: Tensor
    targets: Tensor
    mask: Tensor

    @classmethod
    def of(cls, kv: Tensor, positions: Tensor, targets: Tensor, num_keys: int) -> RowPlan:
        """Return a plan in which row r's token is at positions[r] and sees keys 0 ... positions[r] of the first
        `num_keys`."""
        rows = torch.arange(len(positions), device=kv.device)
        hidden = torch.arange(num_keys, device=kv.device) > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=kv.dtype, device=kv.device).masked_fill_(hidden, -math.inf)
        return cls(kv, rows, targets, mask[:, None, None])


def cache_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: AttentionPlan | RowPlan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]. Padding becomes zeros."""
    asked = [name for name in UNSUPPORTED if options.get(name) is not None]
    if plan is None or asked:
        raise EngineError(
            f"attention '{NAME}' was called {'with ' + ', '.join(asked) if asked else 'outside of an engine step'}; "
            "it computes full causal attention of engine steps only; choose another attention implementation or engine"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    fresh = torch.stack((key[0], value[0]))
    if isinstance(plan, RowPlan):
        return _attend_rows(query[0], fresh, plan, layer, scale)[None], None
    n = plan.num_singles
    if n:
        torch._foreach_copy_(plan.targets[layer], fresh[:, :, :n].unbind(2))
    for span in plan.spans:
        target = span.cache.kv[layer].narrow(2, span.start, span.last - span.first)
        target.copy_(fresh[:, :, span.first : span.last])
    by_token = query[0].transpose(0, 1)
    if plan.last is not None and layer == plan.last.index:
        out = by_token.new_zeros(by_token.shape)
        at = plan.last.at
        return out.index_copy_(0, at, _attend(by_token[at], plan.last.reads, layer, key.shape[1], scale))[None], None
    out = by_token.new_empty(by_token.shape)
    out[:n] = _attend(by_token[:n], plan.reads, layer, key.shape[1], scale)
    for span in plan.spans:
        n = span.last
        out[span.first : n] = _attend_span(query[0, :, span.first : n], span, layer, scale).transpose(0, 1)
    out[n:] = 0
    return out[None], None


def _attend(query: Tensor, reads: Reads, layer: int, num_kv_heads: int, scale: float) -> Tensor:
    """query [n, H, D] -> [n, H, D], each query separately. Grouped query heads are computed together, so that no key is
    repeated.

    On a CPU every query reads its cache in place: copying the keys of several queries, for one call over all of them,
    costs as much as the attention itself. In fp32 plain products are faster than the fused kernel. Their bits do not
    depend on the number of threads, unlike those of the kernel if H/Hkv is odd."""
    n, num_heads, head_dim = query.shape
    if n == 0:
        return query
    grouped = query.reshape(n, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = torch.empty_like(grouped)
    keys, values = reads.keys[layer], reads.values[layer]
    if reads.chunks:
        for chunk in reads.chunks:
            own = slice(chunk.first, chunk.last)
            k, v = torch.stack(keys[own]).mT, torch.stack(values[own])
            out[own] = F.scaled_dot_product_attention(grouped[own], k, v, attn_mask=chunk.mask, scale=scale)
    elif suits(query):
        for q, k, v, o in zip((grouped * scale).unbind(), keys, values, out.unbind(), strict=True):
            torch.bmm(torch.bmm(q, k).softmax(-1), v, out=o)
    else:
        for q, k, v, o in zip(grouped.unbind(), keys, values, out.unbind(), strict=True):
            o.copy_(F.scaled_dot_product_attention(q[None], k.mT[None], v[None], scale=scale)[0])
    return out.view(n, num_heads, head_dim)


def _attend_span(query: Tensor, span: PrefillSpan, layer: int, scale: float) -> Tensor:
    """query [H, n, D] -> [H, n, D]"""
    keys, values = span.cache.kv[layer, :, :, : span.start + query.shape[1]]
    if suits(query):
        return causal_attention(query, keys, values, span.start, scale)
    return F.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=span.mask,
        is_causal=span.mask is None,
        scale=scale,
        enable_gqa=query.shape[0] != keys.shape[0],
    )[0]


def _attend_rows(query: Tensor, fresh: Tensor, plan: RowPlan, layer: int, scale: float) -> Tensor:
    """query [H, R, D], fresh [2, Hkv, R, D] -> [R, H, D]"""
    (num_heads, n, head_dim), num_kv_heads = query.shape, fresh.shape[1]
    kv = plan.kv[layer]
    kv[:, plan.rows, :, plan.targets] = fresh.permute(2, 0, 1, 3)
    keys, values = kv[:, :n, :, : plan.mask.shape[-1]]
    grouped = query.transpose(0, 1).reshape(n, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=plan.mask, scale=scale)
    return out.reshape(n, num_heads, head_dim)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask, because transformers would build a [T, T] mask over the packed row; the plan brings its own
    masks."""


AttentionInterface.register(NAME, cache_attention)
AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def engine_mode(
    model: PreTrainedModel, *, attention: str = NAME, modules: Sequence[nn.Module] | None = None
) -> Iterator[None]:
    """Run the live policy with this attention, without dropout and gradients. Everything is restored afterwards, module
    by module, so training of the same weights is not affected. modules: all modules of the model, if known."""
    before = model.config._attn_implementation
    training = [m for m in (model.modules() if modules is None else modules) if m.training]
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
