"""One engine step as tensors: which tokens run in the packed row, where they belong and who attends to what.

Bits on CPU, measured (torch 2.13, fp32, 1 to 16 threads, hidden 128 to 2048, vocabulary to 152 k): a row of a linear
layer has the same bits whatever the other rows are, if the number of rows is a multiple of 8. Below 4 rows, and with
several threads at 5-7, 9-11, ... rows, another kernel is used. The attention of one query row has the same bits
whatever the other rows are, but not if more keys are read, masked or not. So the packed row and the LM head are padded
to a multiple of 8, and a decoding row reads its own length rounded up to a bucket.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.attention import DecodeChunk, PrefillSpan, StepPlan
from agentgrpo.engines.schedule import Step, Turn
from agentgrpo.engines.slots import SlotPool

ROW_MULTIPLE = 8
BUCKET = 32
"""Keys that a decoding row reads are a multiple of this. Smaller reads less; larger makes fewer attention calls."""
ROWS_PER_CHUNK = 32
"""Decoding rows per attention call: their keys and values should fit into a core's cache."""


class Packed(NamedTuple):
    input_ids: Tensor
    """[1, T]"""
    position_ids: Tensor
    """[1, T]"""
    logits_at: Tensor
    """Rows of T to compute logits for; the first `num_sampled` are those of the turns that draw a token, in order."""
    num_sampled: int
    plan: StepPlan


def bucketed(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


def pack(step: Step, pool: SlotPool, *, deterministic: bool) -> Packed:
    """Lay a step out: decoding rows by length, then the spans, then padding. Sorts `step.decoding` in place."""
    step.decoding.sort(key=lambda t: len(t.tokens))
    ids = [t.tokens[-1] for t in step.decoding]
    slots = [t.held.slot for t in step.decoding]
    positions = [len(t.tokens) - 1 for t in step.decoding]
    logits_at = list(range(len(ids)))
    spans: list[PrefillSpan] = []
    for turn, start, stop, sampled in step.spans:
        first = len(ids)
        ids += turn.tokens[start:stop]
        slots += [turn.held.slot] * (stop - start)
        positions += range(start, stop)
        mask = _causal_mask(pool, start, stop) if start else None
        spans.append(PrefillSpan(first, len(ids), turn.held.slot, start, mask))
        if sampled:
            logits_at.append(len(ids) - 1)
    n, num_sampled = len(ids), len(logits_at)
    if deterministic:
        ids += [0] * (-n % ROW_MULTIPLE)
        logits_at += [0] * (-num_sampled % ROW_MULTIPLE)
    padding = [0] * (len(ids) - n)
    table = torch.tensor([ids, positions + padding, slots + padding], device=pool.device)
    chunks = _chunks(step.decoding, table[1], table[2], pool, deterministic=deterministic)
    plan = StepPlan(pool, table[2, :n], table[1, :n], chunks, spans)
    return Packed(table[:1], table[1:2], torch.tensor(logits_at or [0], device=pool.device), num_sampled, plan)


def _chunks(
    turns: list[Turn], positions: Tensor, slots: Tensor, pool: SlotPool, *, deterministic: bool
) -> list[DecodeChunk]:
    """Cut the decoding rows, which are sorted by length. Deterministic: rows of one chunk have one bucket, so that
    what a row reads depends on the row alone; else a chunk reads as much as its longest row needs."""
    lengths = [len(t.tokens) for t in turns]
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
