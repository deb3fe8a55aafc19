"""One engine step as tensors: the tokens of the packed row, their positions, and the keys that each attends to.

Bits on CPU, measured (torch 2.13, fp32, 1 to 16 threads, hidden 64 to 2048, vocabulary to 152 k): a row of a linear
layer has the same bits whatever the other rows are, if the number of rows is a multiple of 8. Below 4 rows, and with
several threads at 5-7, 9-11, ... rows, another kernel is used. The bits of a single query's attention depend only on
the number of keys that are read, masked or not; the same holds for a span of at least 4 tokens. Therefore the packed
row and the LM head are padded to a multiple of 8, a single query reads its own length (if keys are read in place) or
that length rounded up to a bucket, and the tokens of very short spans attend one by one.
"""

from __future__ import annotations

import math
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.attention import AttentionPlan, Chunk, LastLayer, PrefillSpan, Reads
from agentgrpo.engines.cache import CacheShape, KVCache, bucketed
from agentgrpo.engines.kernels.causal import suits
from agentgrpo.engines.schedule import Step

ROW_MULTIPLE = 8
ROWS_PER_CHUNK = 64
"""Rows per attention call, if one call computes several rows: limits the size of the copies of their keys."""


class Packed(NamedTuple):
    input_ids: Tensor
    """[1, T]"""
    position_ids: Tensor
    """[1, T]"""
    logits_at: Tensor
    """Rows of T to compute logits for, without duplicates: first one for each turn that draws a token, in the order of
    `Step.drawing`."""
    plan: AttentionPlan


def pack(step: Step, shape: CacheShape, *, deterministic: bool) -> Packed:
    """Lay out a step: first the tokens that attend separately, by position; then the spans; then padding."""
    singles = sorted(
        ((at, unit) for unit in step.units if unit.single for at in range(unit.start, unit.stop)),
        key=lambda single: single[0],
    )
    spans = [unit for unit in step.units if not unit.single]
    ids = [unit.turn.tokens[at] for at, unit in singles]
    positions = [at for at, _ in singles]
    row_of = {unit: row for row, (at, unit) in enumerate(singles) if at == unit.stop - 1}
    prefill: list[PrefillSpan] = []
    for unit in spans:
        first = len(ids)
        ids += unit.turn.tokens[unit.start : unit.stop]
        positions += range(unit.start, unit.stop)
        row_of[unit] = len(ids) - 1
        mask = _causal_mask(shape, unit.start, unit.stop)
        prefill.append(PrefillSpan(first, len(ids), unit.start, unit.turn.context.held, mask))
    drawing = [unit for unit in step.units if unit.draws]
    logits_at = [row_of[unit] for unit in drawing]
    if deterministic:
        padding = [0] * (-len(ids) % ROW_MULTIPLE)
        ids, positions = ids + padding, positions + padding
    logits_at += _unread_rows(len(ids), logits_at, ROW_MULTIPLE if deterministic else 1)
    table = torch.tensor([ids, positions], device=shape.device)
    rows = torch.tensor(logits_at, device=shape.device)
    last = None
    if spans or len(logits_at) < len(ids):  # the last layer computes a span's last token separately
        ends = [(unit.stop - 1, unit.turn.context.held) for unit in drawing]
        last = LastLayer(shape.layers - 1, rows[: len(drawing)], _reads(ends, shape))
    queries = [(at, unit.turn.context.held) for at, unit in singles]
    targets = _by_layer([cache.kv.select(3, at).unbind() for at, cache in queries])
    return Packed(
        table[:1], table[1:], rows, AttentionPlan(len(singles), targets, _reads(queries, shape), prefill, last)
    )


def _unread_rows(num_rows: int, read: list[int], multiple: int) -> list[int]:
    """Return rows that bring the number of read rows to a multiple, and to at least one."""
    missing = -len(read) % multiple or (0 if read else multiple)
    return list(islice((row for row in range(num_rows) if row not in set(read)), missing))


def _reads(queries: list[tuple[int, KVCache]], shape: CacheShape) -> Reads:
    """Return the keys and values for queries at positions of caches."""
    lengths = [at + 1 if shape.in_place else bucketed(at + 1) for at, _ in queries]
    keys = [cache.keys_t.narrow(3, 0, n).unbind() for n, (_, cache) in zip(lengths, queries, strict=True)]
    values = [cache.values.narrow(2, 0, n).unbind() for n, (_, cache) in zip(lengths, queries, strict=True)]
    return Reads(
        _by_layer(keys), _by_layer(values), [] if shape.in_place else _chunks([at for at, _ in queries], shape)
    )


def _by_layer(views: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    return list(zip(*views, strict=True))


def _chunks(positions: list[int], shape: CacheShape) -> list[Chunk]:
    """Cut the queries into chunks of equal bucket, so that the number of keys read depends on the query alone."""
    chunks: list[Chunk] = []
    end = 0
    for length, group in groupby(positions, lambda at: bucketed(at + 1)):
        start, end = end, end + len(list(group))
        for first in range(start, end, ROWS_PER_CHUNK):
            last = min(first + ROWS_PER_CHUNK, end)
            at = torch.tensor(positions[first:last], device=shape.device)
            hidden = torch.arange(length, device=shape.device) > at[:, None]
            mask = torch.zeros(hidden.shape, dtype=shape.dtype, device=shape.device).masked_fill_(hidden, -math.inf)
            chunks.append(Chunk(first, last, mask[:, None, None]))
    return chunks


def _causal_mask(shape: CacheShape, start: int, stop: int) -> Tensor | None:
    """[stop - start, stop]: token start + i sees keys 0 ... start + i; None if no mask is needed."""
    if start == 0 or suits(torch.empty(0, dtype=shape.dtype, device=shape.device)):
        return None
    mask = torch.full((stop - start, stop), -math.inf, dtype=shape.dtype, device=shape.device)
    return mask.triu_(start + 1)
