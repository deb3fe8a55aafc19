"""Where caches are while their episodes decode together. Bookkeeping and copies, no model."""

from __future__ import annotations

import random

import pytest
import torch

from agentgrpo.engines.cache import CacheShape, Context, KVCache, bucketed
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.recorded import Rows, read_length, rows_for

SHAPE = CacheShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float32, device=torch.device("cpu"), in_place=True)


def rows(most_rows: int = 8, most_tokens: int = 512) -> tuple[Rows, EngineStats]:
    stats = EngineStats()
    return Rows(SHAPE, most_rows=most_rows, most_tokens=most_tokens, stats=stats), stats


def context(number: int, cached: int) -> Context:
    """Every cached token's keys and values are its episode's number and its position."""
    made = Context(number, ("train/0", "task"), 512)
    made.cache = KVCache()
    grow(made, cached)
    return made


def grow(made: Context, cached: int) -> None:
    made.capacity = max(made.capacity, bucketed(cached))
    made.held.reserve(SHAPE, made.capacity)
    made.held.kv[:, :, :, made.cached : cached] = 1000.0 * made.age + torch.arange(made.cached, cached)[:, None]
    made.cached = cached


def holds(made: Context) -> bool:
    expected = 1000.0 * made.age + torch.arange(made.cached)
    return torch.equal(made.held.kv[:, :, :, : made.cached], expected[:, None].expand(2, 2, 3, -1, 4))


def seat(found: Rows, contexts: list[Context]) -> list[int]:
    found.make_room(contexts)
    return found.seat(contexts)


@pytest.mark.parametrize(("decoding", "computed"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16), (17, 24)])
def test_rows_are_powers_of_two_and_no_more_than_there_are_slots(decoding, computed):
    assert rows_for(decoding, 24) == computed


@pytest.mark.parametrize(
    ("tokens", "read"), [(1, 128), (128, 128), (129, 256), (512, 512), (513, 768), (1025, 1536), (2049, 3072)]
)
def test_read_lengths_are_few(tokens, read):
    assert read_length(tokens) == read


def test_who_decodes_on_stays_and_nothing_is_copied_again():
    found, stats = rows()
    group = [context(i, 10 * i) for i in range(1, 5)]
    assert found.make_room(group)
    assert found.seat(group) == [0, 1, 2, 3]
    for tokens in range(41, 60):
        grow(group[3], tokens)
        assert seat(found, group) == [0, 1, 2, 3]
    assert stats.moved_tokens == 10 + 20 + 30 + 40
    assert all(holds(c) for c in group)
    assert all(c.held.kv.data_ptr() == found.kv[:, :, r].data_ptr() for r, c in enumerate(group))


def test_a_row_is_zero_behind_what_moved_in():
    found, _ = rows()
    first, second = context(1, 64), context(2, 5)
    second.held.kv[:, :, :, 5:] = torch.nan  # never written
    seat(found, [first])
    first.cache = None
    assert seat(found, [second]) == [0]
    assert not found.kv[:, :, 0, :, 5:].any()
    assert second.capacity == second.held.capacity == 64


def test_an_idle_cache_keeps_its_row_until_it_is_wanted():
    found, stats = rows()
    a, b, c = (context(i, 10) for i in (1, 2, 3))
    assert seat(found, [a, b]) == [0, 1]
    assert seat(found, [b]) == [0]  # the first row is read, where a is idle
    assert stats.moved_tokens == 10 + 10 + 64 + 10
    assert seat(found, [a, b]) == [1, 0]
    assert stats.moved_tokens == 94 + 10
    assert seat(found, [c, a]) == [0, 1]
    assert all(holds(x) for x in (a, b, c))


def test_a_released_cache_leaves_its_row_at_once():
    found, _ = rows()
    a, b, c = (context(i, 10) for i in (1, 2, 3))
    seat(found, [a, b])
    a.cache = None
    assert list(found._seated()) == [1]
    assert seat(found, [b, c]) == [1, 0]


def test_within_its_row_a_cache_grows_without_a_copy_and_beyond_it_leaves():
    found, stats = rows()
    a, b = context(1, 60), context(2, 3)
    assert seat(found, [a, b]) == [0, 1]
    assert found.length == 128
    at = a.held.kv.data_ptr()
    grow(a, 128)
    assert (a.held.kv.data_ptr(), stats.moved_tokens) == (at, 63)
    grow(a, 129)
    assert a.held.kv.data_ptr() != at
    assert found.make_room([a, b])
    assert found.length == 256
    assert found.seat([a, b]) == [0, 1]
    assert holds(a)
    assert holds(b)
    assert not found.make_room([a, b])


def test_rows_are_no_longer_than_the_longest_context():
    found, _ = rows(most_tokens=300)
    found.make_room([context(1, 300)])
    assert found.length == 320


def test_padding_writes_where_nobody_reads():
    found, _ = rows()
    a, b, c = (context(i, 128) for i in (1, 2, 3))
    seat(found, [a, b, c])
    found.fill([2, 0, 1], [7, 8, 9], [127, 5, 6], 4)
    assert found.table.tolist() == [[8, 9, 7, 0], [5, 6, 127, 0], [5, 6, 127, 128]]
    found.kv[:, :, torch.arange(4), :, found.table[2]] = -1.0
    assert found.kv[:, :, 3, :, :128].count_nonzero() == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_cache_holds_what_was_written(seed):
    """Episodes come and go, decode in turns, grow; some caches are kept by others than their context."""
    rng, numbers = random.Random(seed), iter(range(1, 10_000))
    found, _ = rows(most_rows=6, most_tokens=640)
    alive: list[Context] = []
    borrowed: list[tuple[KVCache, torch.Tensor]] = []
    for _ in range(60):
        while len(alive) < 6 and rng.random() < 0.6:
            alive.append(context(next(numbers), rng.choice((1, 30, 64, 200))))
        if alive and rng.random() < 0.3:
            gone = alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.5:
                borrowed.append((gone.held, gone.held.kv[:, :, :, : gone.cached].clone()))
            gone.cache = None
        decoding = rng.sample(alive, rng.randint(0, len(alive)))
        for c in decoding:
            grow(c, min(640, c.cached + rng.choice((1, 1, 1, 60, 200))))
        if decoding:
            at = seat(found, decoding)
            assert len(set(at)) == len(at)
            assert max(at) < rows_for(len(at), 6)
            for r, c in zip(at, decoding, strict=True):
                assert c.held.kv.data_ptr() == found.kv[:, :, r].data_ptr()
        assert all(holds(c) for c in alive)
        assert all(torch.equal(cache.kv[:, :, :, : kept.shape[3]], kept) for cache, kept in borrowed)
