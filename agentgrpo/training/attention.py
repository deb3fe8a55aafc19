"""Attention over packed rows (grpo.packing) for unmodified transformers models.

`transformers` passes `packed_layout=` through the model to the function registered here. There are three equivalent
implementations: plain products for long rows in fp32 on a CPU, the variable-length kernel in half precision on CUDA,
and padded blocks of rows through scaled_dot_product_attention in all other cases. The mask function returns None,
because otherwise a [1, 1, T, T] mask would be built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.kernels import causal
from agentgrpo.engines.kernels.causal import CHUNK, by_head, by_kv_head, probabilities, scratch, triangle
from agentgrpo.engines.kernels.last_layer import last_layer_rows
from agentgrpo.grpo.packing import PackedRow
from agentgrpo.training import attention_varlen
from agentgrpo.training.attention_varlen import VarlenPieces, attend_in_pieces, pieces_of

# --- Attention over packed rows by the library's fused kernels, on any device and in any dtype.
#
# Rows of about the same length are gathered into one right-padded [rows, length] block, prompt included, and each block
# is one causal SDPA call: real tokens cannot see the padding on their right, so this is exact, needs no mask, and takes
# few kernel calls even for many rows. The output of a shared prompt is taken from one of its rows, because all of them
# compute the same; its keys and values collect the gradients of all of them.

SHORTEST_IN_BLOCK = 0.9
"""Minimum ratio of the shortest to the longest row of a block: a lower ratio wastes work on padding, a higher one takes
more kernel calls."""


class Blocks(NamedTuple):
    """T packed tokens; S slots: the padded blocks, one after the other."""

    token_of_slot: Tensor
    """[S] the packed token in each slot; the padding repeats the row's last token."""
    slot_of_token: Tensor
    """[T] one slot of each packed token."""
    shapes: tuple[tuple[int, int], ...]
    """(rows, length) of each block."""


def blocks_of(rows: Sequence[PackedRow], device: torch.device) -> Blocks:
    """Arrange `rows` in blocks, longest rows first."""
    by_length = sorted(rows, key=lambda r: -(r.prompt_length + r.length))
    blocks: list[list[PackedRow]] = []
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


def _length(row: PackedRow) -> int:
    return row.prompt_length + row.length


def _slots(block: Sequence[PackedRow]) -> tuple[Tensor, Tensor]:
    """Return [rows * length] the packed token of each slot of a block, and whether the slot is not padding."""
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


# --- Attention over packed rows in single precision on a CPU: `engines.kernels.causal` with a gradient.
#
# Every context (a shared prompt, or a row's own piece after its prompt) is computed separately, `CHUNK` queries at a
# time. The queries of a shared prompt are computed once. If only some outputs are read, as in the last layer, only
# those tokens are queries.


class Queries(NamedTuple):
    """Up to CHUNK tokens of one context. at: their packed positions; mask [n, 1, k]: see `probabilities`."""

    at: slice | Tensor
    seen: int
    """Number of keys, from the beginning of the context, that the last query sees."""
    mask: Tensor


class PackedContext(NamedTuple):
    """A run of tokens that attend to one another: one or two pieces of the packed sequence."""

    pieces: tuple[slice, ...]
    chunks: tuple[Queries, ...]

    @property
    def length(self) -> int:
        return sum(p.stop - p.start for p in self.pieces)


def contexts(rows: Sequence[PackedRow], only: Tensor | None = None) -> tuple[PackedContext, ...]:
    """Return the contexts of packed `rows`. only: the packed tokens that are queries, ascending (None = all)."""
    chosen = None if only is None else only.tolist()
    found: list[PackedContext] = []
    for start, length in sorted({(r.prompt_start, r.prompt_length) for r in rows if r.prompt_length}):
        prompt = slice(start, start + length)
        found.append(PackedContext((prompt,), tuple(_chunks(prompt, 0, chosen))))
    for row in rows:
        prompt = slice(row.prompt_start, row.prompt_start + row.prompt_length)
        own = slice(row.start, row.start + row.length)
        found.append(PackedContext((prompt, own), tuple(_chunks(own, row.prompt_length, chosen))))
    return tuple(c for c in found if c.chunks)


def _chunks(piece: slice, before: int, chosen: Sequence[int] | None) -> Iterator[Queries]:
    """Yield the queries of a piece that is preceded by `before` tokens of its context."""
    if chosen is None:
        for start in range(piece.start, piece.stop, CHUNK):
            stop = min(start + CHUNK, piece.stop)
            yield Queries(slice(start, stop), before + stop - piece.start, triangle(stop - start))
        return
    for at in _runs([t for t in chosen if piece.start <= t < piece.stop]):
        position = torch.tensor(at) - piece.start + before
        first, seen = int(position[0]), int(position[-1]) + 1
        hidden = torch.arange(first + 1, seen) > position[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        yield Queries(torch.tensor(at), seen, mask[:, None])


def _runs(tokens: Sequence[int]) -> Iterator[list[int]]:
    """Cut `tokens` into runs of at most CHUNK tokens, also at gaps of more than CHUNK tokens."""
    run: list[int] = list(tokens[:1])
    for before, token in pairwise(tokens):
        if len(run) == CHUNK or token - before > CHUNK:
            yield run
            run = []
        run.append(token)
    if run:
        yield run


class PackedAttention(torch.autograd.Function):
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]; zeros for tokens that are not queries.

    Backward (Dao et al., FlashAttention, 2022, B.4): the probabilities P are recomputed instead of kept. With dP the
    gradient of P, dS = P * (dP - rowsum(dO * O))."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: tuple[PackedContext, ...], scale: float
    ) -> Tensor:
        num_kv_heads = key.shape[1]
        scaled = by_kv_head(query[0], num_kv_heads, scale)
        out = torch.zeros_like(scaled)
        room = _room(scaled, parts)
        for context in parts:
            keys, values = _gathered(key[0], context), _gathered(value[0], context)
            for at, seen, mask in context.chunks:
                q = scaled[:, at]
                p = probabilities(q, keys[:, :seen], mask, room)
                out[:, at] = torch.bmm(p, values[:, :seen]).view(q.shape)
        result = by_head(out).transpose(0, 1)[None]
        ctx.save_for_backward(scaled, key, value, result)
        ctx.parts, ctx.scale = parts, scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled, key, value, result = ctx.saved_tensors
        (gradient,) = gradients
        num_kv_heads, _, g, dim = scaled.shape
        d_out = by_kv_head(gradient[0].transpose(0, 1), num_kv_heads)
        delta = (gradient * result).sum(-1)[0].view(-1, num_kv_heads, g).transpose(0, 1)
        d_query = torch.zeros_like(scaled)
        d_key, d_value = (key.new_zeros(num_kv_heads, key.shape[2], dim) for _ in range(2))
        room, other_room = _room(scaled, ctx.parts), _room(scaled, ctx.parts)
        for context in ctx.parts:
            keys, values = _gathered(key[0], context), _gathered(value[0], context)
            d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
            for at, seen, mask in context.chunks:
                q, d_o = scaled[:, at], d_out[:, at].flatten(1, 2)
                p = probabilities(q, keys[:, :seen], mask, room)
                d_values[:, :seen].baddbmm_(p.transpose(1, 2), d_o)
                d_p = other_room[: p.numel()].view(p.shape)
                torch.bmm(d_o, values[:, :seen].transpose(1, 2), out=d_p)
                d_scores = d_p.sub_(delta[:, at].flatten(1, 2)[..., None]).mul_(p)
                d_query[:, at] = torch.bmm(d_scores, keys[:, :seen]).view(q.shape)
                d_keys[:, :seen].baddbmm_(d_scores.transpose(1, 2), q.flatten(1, 2))
            start = 0
            for piece in context.pieces:
                stop = start + piece.stop - piece.start
                d_key[:, piece] += d_keys[:, start:stop]
                d_value[:, piece] += d_values[:, start:stop]
                start = stop
        return by_head(d_query.mul_(ctx.scale))[None], d_key[None], d_value[None], None, None


def _room(scaled: Tensor, parts: tuple[PackedContext, ...]) -> Tensor:
    return scratch(scaled, CHUNK, max((c.length for c in parts), default=0))


def _gathered(heads: Tensor, context: PackedContext) -> Tensor:
    """[Hkv, T, D] -> the tokens of the context, [Hkv, length, D]."""
    pieces = [heads[:, piece] for piece in context.pieces]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


NAME = "agentgrpo_packed"
SHORT = 192
"""Tokens. If rows are shorter than this on average, a few padded blocks cost less than many small products."""


@dataclass(frozen=True)
class PackedLayout:
    """Which tokens attend to which. read [n]: the packed tokens whose last hidden states are read, ascending; None =
    all."""

    rows: Sequence[PackedRow]
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
    def pieces(self) -> VarlenPieces:
        return pieces_of(self.rows, self.device)

    @cached_property
    def contexts(self) -> tuple[PackedContext, ...]:
        return contexts(self.rows)

    @cached_property
    def contexts_read(self) -> tuple[PackedContext, ...]:
        """The contexts of the last layer."""
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
    if torch.is_autocast_enabled(query.device.type):  # rotary embeddings leave queries and keys in fp32
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
    """Raise ConfigError for anything but full causal attention, instead of computing something else."""
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
    """Let `model` attend over packed rows inside the block; its last layer computes only the outputs that `layout`
    marks as read. The model's own implementation is restored afterwards."""
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
