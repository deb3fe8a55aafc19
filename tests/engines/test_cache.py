from __future__ import annotations

import pytest
import torch

from agentgrpo.engines.cache import CacheShape, KVCache, bucketed, budget_within

SHAPE = CacheShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float32, device=torch.device("cpu"), in_place=False)


@pytest.mark.parametrize(
    ("tokens", "room"),
    [(1, 64), (64, 64), (65, 128), (257, 320), (512, 512), (513, 640), (1024, 1024), (1025, 1280), (16385, 20480)],
)
def test_room_is_a_bucket(tokens, room):
    assert bucketed(tokens) == room


def test_what_all_contexts_have_room_for_is_a_third_of_what_the_weights_leave():
    assert SHAPE.token_bytes == 2 * 2 * 3 * 4 * 4
    sizes = {"weight_bytes": 3_000, "token_bytes": SHAPE.token_bytes}
    assert budget_within(3_000 + 3 * 192 * 1000, **sizes, longest=500) == 1000
    assert budget_within(2_000, **sizes, longest=500) == 512  # one context at least


def test_rooms_grow_and_never_waste_more_than_a_quarter():
    rooms = [bucketed(n) for n in range(1, 40000)]
    assert rooms == sorted(rooms)
    assert all(bucketed(room) == room for room in set(rooms))
    assert max(room / n for n, room in enumerate(rooms, 1) if n >= 256) <= 1.25


def test_growing_keeps_everything_and_the_rest_is_zero():
    cache = KVCache()
    assert cache.capacity == 0
    cache.reserve(SHAPE, 5)
    numbers = torch.randn(2, 2, 3, 5, 4)
    cache.kv.copy_(numbers)
    cache.reserve(SHAPE, 3)
    assert cache.capacity == 5
    cache.reserve(SHAPE, 9)
    assert torch.equal(cache.kv[:, :, :, :5], numbers)
    assert not cache.kv[:, :, :, 5:].any()
    assert cache.kv.shape == (2, 2, 3, 9, 4)
    assert torch.equal(cache.keys_t[:, :, :, :5], numbers[:, 0].transpose(-1, -2))
    assert torch.equal(cache.values[:, :, :5], numbers[:, 1])


def test_a_prefix_is_copied():
    source, target = KVCache(), KVCache()
    for cache, tokens in ((source, 6), (target, 9)):
        cache.reserve(SHAPE, tokens)
    source.kv.normal_()
    target.copy_prefix(source, 4)
    assert torch.equal(target.kv[:, :, :, :4], source.kv[:, :, :, :4])
    assert not target.kv[:, :, :, 4:].any()
