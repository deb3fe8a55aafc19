"""A rate limit: never more than the limit in any window, first come first served, nothing spent by who left."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from agentgrpo.errors import ConfigError
from agentgrpo.network.rate import RateLimiter


async def ticks(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def granted(limiter: RateLimiter, order: list[str], name: str, tokens: int = 0) -> None:
    await limiter.take(tokens)
    order.append(name)


async def test_what_fits_goes_at_once_and_the_rest_waits() -> None:
    limiter, order = RateLimiter(requests_per_minute=2), list[str]()
    tasks = [asyncio.create_task(granted(limiter, order, name)) for name in "abc"]
    await ticks()
    assert order == ["a", "b"]
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_window_ever_holds_more_than_the_limit() -> None:
    limiter, loop = RateLimiter(requests_per_minute=5, window_s=0.1), asyncio.get_running_loop()
    at: list[float] = []

    async def call() -> None:
        await limiter.take()
        at.append(loop.time())

    await asyncio.gather(*(call() for _ in range(23)))
    assert len(at) == 23
    assert all(later - at[i] >= 0.1 - 1e-6 for i, later in enumerate(at[5:]))
    assert at[-1] - at[0] < 2.0  # 4 windows; it does not wait for longer than it must


async def test_nobody_overtakes_even_where_a_later_call_would_fit() -> None:
    limiter, order = RateLimiter(tokens_per_minute=100, window_s=0.1), list[str]()
    await asyncio.gather(
        granted(limiter, order, "80", 80), granted(limiter, order, "60", 60), granted(limiter, order, "10", 10)
    )
    assert order == ["80", "60", "10"]


async def test_a_cancelled_waiter_spends_nothing_and_blocks_nobody() -> None:
    limiter, order = RateLimiter(tokens_per_minute=100), list[str]()
    await limiter.take(50)
    tasks = [asyncio.create_task(granted(limiter, order, str(n), n)) for n in (70, 30, 20)]
    await ticks()
    assert order == []  # 30 would fit, but 70 was first
    tasks[0].cancel()
    await ticks()
    assert order == ["30", "20"]
    assert [grant.tokens for grant in limiter._granted] == [50, 30, 20]
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_waiter_that_is_cancelled_in_the_tick_of_its_grant_gives_it_back() -> None:
    limiter, order = RateLimiter(tokens_per_minute=100), list[str]()
    first = await limiter.take(100)
    tasks = [asyncio.create_task(granted(limiter, order, name, 60)) for name in "ab"]
    await ticks()
    limiter.settle(first, 0)  # grants a ...
    tasks[0].cancel()  # ... which leaves before it hears of it
    await ticks()
    assert order == ["b"]
    assert [grant.tokens for grant in limiter._granted] == [0, 60]
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_a_call_has_used_replaces_what_it_was_expected_to() -> None:
    limiter, order = RateLimiter(tokens_per_minute=100), list[str]()
    grant = await limiter.take(90)
    waiting = asyncio.create_task(granted(limiter, order, "next", 50))
    await ticks()
    assert order == []
    limiter.settle(grant, 20)
    await ticks()
    assert order == ["next"]
    await waiting


async def test_a_call_beyond_the_limit_goes_alone() -> None:
    limiter, order = RateLimiter(tokens_per_minute=10, window_s=0.05), list[str]()
    await asyncio.gather(granted(limiter, order, "huge", 1000), granted(limiter, order, "small", 1))
    assert order == ["huge", "small"]


async def test_no_limit_keeps_nothing() -> None:
    limiter = RateLimiter()
    for _ in range(1000):
        await limiter.take(10**9)
    assert len(limiter._granted) == 0


def test_it_holds_over_consecutive_event_loops() -> None:
    limiter, at = RateLimiter(requests_per_minute=1, window_s=0.1), list[float]()

    async def call() -> None:
        await limiter.take()
        at.append(asyncio.get_running_loop().time())

    for _ in range(3):
        asyncio.run(call())
    assert all(b - a >= 0.1 - 1e-6 for a, b in pairwise(at))


@pytest.mark.parametrize("key", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=0; 1 or more is allowed, and null for no limit"):
        RateLimiter(**{key: 0})  # type: ignore[arg-type]
