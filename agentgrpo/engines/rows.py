"""Caches side by side at a fixed address: the keys and values that a recorded decode step reads and writes.

A cache is in one place at a time, by itself or in a row; what reads or writes one sees no difference. So nothing is
kept twice and nothing has to be written back: who rewinds, copies a prompt, computes a span or evicts does it as ever.

    moves in    when its episode decodes and its row is not among the first ones, which such a step reads
    moves out   when another one that decodes needs its row, or when it outgrows all of them (`KVCache.reserve`)
    is gone     with its cache: rows hold none alive

More rows, or longer ones, are other memory: everybody moves, both exist for a moment, and all that was recorded is
void. So they never become fewer or shorter. `engine.kv_budget` counts caches wherever they are; rows that are empty or
longer than their cache come on top, rows times length at most.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from agentgrpo.engines.cache import CacheShape, KVCache, bucketed
from agentgrpo.engines.contexts import Context
from agentgrpo.engines.counters import EngineStats

LEAST_LENGTH = 128
"""Tokens of the shortest row."""


def rows_for(decoding: int, most: int) -> int:
    """How many rows a step of so many episodes computes: a power of two, or `most`."""
    return min(1 << (decoding - 1).bit_length(), most)


def read_length(tokens: int) -> int:
    """How many keys a step reads whose longest row has so many: a multiple of 128, and beyond 512 tokens of a quarter
    of the next power of two. Coarser than a cache's own length: each of these lengths is recorded."""
    step = max(LEAST_LENGTH, 1 << max(0, (tokens - 1).bit_length() - 2))
    return -(-tokens // step) * step


class Rows:
    """kv [layers, 2, rows, kv heads, length + 1, head dim]: the last token of a row is for what nobody reads. table [3,
    rows] says what the next step does with each: the token, its position, and where its key and value go."""

    kv: Tensor
    table: Tensor

    def __init__(self, shape: CacheShape, *, most_rows: int, most_tokens: int, stats: EngineStats) -> None:
        """most_tokens: of one cache."""
        self._shape, self._stats = shape, stats
        self._most_rows, self._most_tokens = most_rows, bucketed(most_tokens)
        self._rooms: list[Tensor] = []
        self._caches: list[weakref.ref[KVCache] | None] = []
        self.length = 0

    def make_room(self, contexts: Sequence[Context]) -> bool:
        """Rows for contexts that decode together, which have room for their tokens; whether all is elsewhere now."""
        rows = max(len(self._rooms), rows_for(len(contexts), self._most_rows))
        tokens = max(c.capacity for c in contexts)
        if tokens > self.length:
            length = min(max(1 << (tokens - 1).bit_length(), LEAST_LENGTH), self._most_tokens)
        else:
            length = self.length
        if (rows, length) == (len(self._rooms), self.length):
            return False
        shape, seated = self._shape, self._seated()
        size = (shape.layers, 2, rows, shape.kv_heads, length + 1, shape.head_dim)
        kv = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        rooms = [kv[:, :, row, :, :length] for row in range(rows)]
        for row, cache in seated.items():
            self._move(cache, rooms[row], cache.capacity)
        self.kv, self.table = kv, torch.zeros(3, rows, dtype=torch.int64, device=shape.device)
        self._rooms, self.length = rooms, length
        self._stats.row_tokens = rows * length
        self._caches = [weakref.ref(seated[row]) if row in seated else None for row in range(rows)]
        return True

    def seat(self, contexts: Sequence[Context]) -> list[int]:
        """The row of each, among the first `rows_for(len(contexts))`. Who is there already stays; the others come in
        the place of nobody, or of one that does not decode."""
        first = rows_for(len(contexts), self._most_rows)
        seated = self._seated()
        rows = {cache: row for row, cache in seated.items() if row < first}
        decoding = {c.held for c in contexts}
        free = [row for row in range(first) if seated.get(row) not in decoding]
        free.sort(key=lambda row: row in seated)
        for context in contexts:
            cache = context.held
            if cache in rows:
                continue
            row = free.pop(0)
            if row in seated:
                idle = seated[row]
                self._move(idle, self._shape.room(idle.capacity), idle.capacity)
            self._move(cache, self._rooms[row], context.cached)
            self._caches[row], rows[cache] = weakref.ref(cache), row
        return [rows[c.held] for c in contexts]

    def fill(self, rows: Sequence[int], tokens: Sequence[int], positions: Sequence[int], num_rows: int) -> None:
        """The table's first `num_rows`: the given rows, and the others such that they leave their caches alone."""
        table = [[0] * num_rows, [0] * num_rows, [self.length] * num_rows]
        for row, token, position in zip(rows, tokens, positions, strict=True):
            table[0][row], table[1][row], table[2][row] = token, position, position
        self.table[:, :num_rows].copy_(torch.tensor(table))

    def _seated(self) -> dict[int, KVCache]:
        """Who is in which row."""
        caches = ((row, ref()) for row, ref in enumerate(self._caches) if ref is not None)
        return {row: cache for row, cache in caches if cache is not None and cache.room is self._rooms[row]}

    def _move(self, cache: KVCache, room: Tensor, tokens: int) -> None:
        cache.move(room, tokens)
        self._stats.moved_tokens += tokens
