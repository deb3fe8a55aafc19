"""Attention over packed rows in single precision on a CPU: `kernels.causal` with a gradient.

Every context (a shared prompt; a row's own piece after its prompt) attends by itself, `CHUNK` queries at a time. A
shared prompt's queries run once. Where only some tokens' outputs are read, as in the last layer, only those query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentgrpo.grpo.packing import Row
from agentgrpo.kernels.causal import CHUNK, by_head, by_kv_head, probabilities, scratch, triangle


class Queries(NamedTuple):
    """Up to CHUNK tokens of one context. at: where they are packed; mask [n, 1, k]: see `probabilities`."""

    at: slice | Tensor
    seen: int
    """Keys of the context, from its beginning, that the last of them sees."""
    mask: Tensor


class Context(NamedTuple):
    """A run of tokens that attend to one another: one or two pieces of the packed sequence."""

    pieces: tuple[slice, ...]
    chunks: tuple[Queries, ...]

    @property
    def length(self) -> int:
        return sum(p.stop - p.start for p in self.pieces)


def contexts(rows: Sequence[Row], only: Tensor | None = None) -> tuple[Context, ...]:
    """The contexts of packed `rows`; only: the packed tokens that are queries, ascending (None = all)."""
    chosen = None if only is None else only.tolist()
    found: list[Context] = []
    for start, length in sorted({(r.prompt_start, r.prompt_length) for r in rows if r.prompt_length}):
        prompt = slice(start, start + length)
        found.append(Context((prompt,), tuple(_chunks(prompt, 0, chosen))))
    for row in rows:
        prompt = slice(row.prompt_start, row.prompt_start + row.prompt_length)
        own = slice(row.start, row.start + row.length)
        found.append(Context((prompt, own), tuple(_chunks(own, row.prompt_length, chosen))))
    return tuple(c for c in found if c.chunks)


def _chunks(piece: slice, before: int, chosen: Sequence[int] | None) -> Iterator[Queries]:
    """The queries of a piece that `before` tokens of its context precede."""
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
    """Cut where CHUNK is reached or more than CHUNK tokens are missing in between."""
    run: list[int] = list(tokens[:1])
    for before, token in pairwise(tokens):
        if len(run) == CHUNK or token - before > CHUNK:
            yield run
            run = []
        run.append(token)
    if run:
        yield run


class PackedAttention(torch.autograd.Function):
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]; zeros for tokens that are no query.

    Backward (Dao et al., FlashAttention, 2022, B.4): the probabilities P are made again instead of kept; with dP the
    gradient of P, dS = P * (dP - rowsum(dO * O))."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: tuple[Context, ...], scale: float
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


def _room(scaled: Tensor, parts: tuple[Context, ...]) -> Tensor:
    return scratch(scaled, CHUNK, max((c.length for c in parts), default=0))


def _gathered(heads: Tensor, context: Context) -> Tensor:
    """[Hkv, T, D] -> the context's own, [Hkv, length, D]."""
    pieces = [heads[:, piece] for piece in context.pieces]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
