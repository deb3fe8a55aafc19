"""One engine step as tensors: which tokens run in the packed row, where they belong and who attends to what.

Bits on CPU, measured (torch 2.13, fp32, 1 to 16 threads, hidden 64 to 2048, vocabulary to 152 k): a row of a linear
layer has the same bits whatever the other rows are, if the number of rows is a multiple of 8. Below 4 rows, and with
several threads at 5-7, 9-11, ... rows, another kernel is used. Attention of a single query depends on how many keys are
read, masked or not, and on nothing else; so does that of a span, if it has 4 tokens at least. Hence the packed row and
the LM head are padded to a multiple of 8, a single query reads its own length rounded up to a bucket, and the tokens of
very short spans attend one by one.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.attention import DecodeChunk, PrefillSpan, StepPlan
from agentgrpo.engines.schedule import Span, Step
from agentgrpo.engines.slots import SlotPool

ROW_MULTIPLE = 8
MIN_SPAN = 8
"""Shorter spans run as single queries."""
BUCKET = 32
"""Keys that a single query reads are a multiple of this. Smaller reads less; larger makes fewer attention calls."""
ROWS_PER_CHUNK = 32
"""Single queries per attention call: their keys and values should fit into a core's cache."""


class Packed(NamedTuple):
    input_ids: Tensor
    """[1, T]"""
    position_ids: Tensor
    """[1, T]"""
    logits_at: Tensor
    """Rows of T to compute logits for: first one for each turn that draws a token, in the order of `Step.drawing`."""
    plan: StepPlan


class Row(NamedTuple):
    """A token that attends by itself. draw: which entry of `Step.drawing` its logits are for, -1 = none."""

    position: int
    slot: int
    token: int
    draw: int


def bucketed(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


def pack(step: Step, pool: SlotPool, *, deterministic: bool) -> Packed:
    """Lay a step out: single queries by position, then the spans, then padding."""
    rows = [Row(len(t.tokens) - 1, t.held.slot, t.tokens[-1], draw) for draw, t in enumerate(step.decoding)]
    num_drawn = len(rows)
    long: list[tuple[Span, int]] = []
    for span in step.spans:
        draw = num_drawn if span.sampled else -1
        num_drawn += span.sampled
        if span.stop - span.start >= MIN_SPAN:
            long.append((span, draw))
            continue
        tokens, slot = span.turn.tokens, span.turn.held.slot
        rows += [Row(i, slot, tokens[i], draw if i == span.stop - 1 else -1) for i in range(span.start, span.stop)]
    rows.sort()
    positions, slots, ids = [r.position for r in rows], [r.slot for r in rows], [r.token for r in rows]
    logits_at = [0] * num_drawn
    for at, row in enumerate(rows):
        if row.draw >= 0:
            logits_at[row.draw] = at
    spans: list[PrefillSpan] = []
    for (turn, start, stop, _), draw in long:
        first, slot = len(ids), turn.held.slot
        ids += turn.tokens[start:stop]
        slots += [slot] * (stop - start)
        positions += range(start, stop)
        spans.append(PrefillSpan(first, len(ids), slot, start, _causal_mask(pool, start, stop) if start else None))
        if draw >= 0:
            logits_at[draw] = len(ids) - 1
    n = len(ids)
    if deterministic:
        ids += [0] * (-n % ROW_MULTIPLE)
        logits_at += [0] * (-num_drawn % ROW_MULTIPLE)
    padding = [0] * (len(ids) - n)
    table = torch.tensor([ids, positions + padding, slots + padding], device=pool.device)
    chunks = _chunks([r.position + 1 for r in rows], table[1], table[2], pool, deterministic=deterministic)
    plan = StepPlan(pool, table[2, :n], table[1, :n], chunks, spans)
    return Packed(table[:1], table[1:2], torch.tensor(logits_at or [0], device=pool.device), plan)


def _chunks(
    lengths: list[int], positions: Tensor, slots: Tensor, pool: SlotPool, *, deterministic: bool
) -> list[DecodeChunk]:
    """Cut the single queries; query i attends to the first `lengths[i]` keys (ascending). Deterministic: queries of one
    chunk have one bucket, so that what is read depends on the query alone; else as much as the longest needs."""
    groups = [len(list(g)) for _, g in groupby(lengths, bucketed)] if deterministic else [len(lengths)]
    chunks: list[DecodeChunk] = []
    end = 0
    for size in groups:
        start, end = end, end + size
        for first in range(start, end, ROWS_PER_CHUNK):
            last = min(first + ROWS_PER_CHUNK, end)
            tokens = bucketed(lengths[first]) if deterministic else lengths[last - 1]
            hidden = torch.arange(tokens, device=pool.device) > positions[first:last, None]
            mask = torch.zeros(hidden.shape, dtype=pool.dtype, device=pool.device).masked_fill_(hidden, -math.inf)
            chunks.append(DecodeChunk(first, last, slots[first:last], tokens, mask[:, None, None]))
    return chunks


def _causal_mask(pool: SlotPool, start: int, stop: int) -> Tensor:
    """[stop - start, stop]: token start + i sees keys 0 ... start + i."""
    mask = torch.full((stop - start, stop), -math.inf, dtype=pool.dtype, device=pool.device)
    return mask.triu_(start + 1)
