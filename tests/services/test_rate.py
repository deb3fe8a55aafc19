"""A rate limit: never more than the limit in any window, first come first served, nothing spent by who left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.services.rate import RateLimiter
from tests.services.clock import VirtualLoop

T = TypeVar("T")


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
    limiter, at = RateLimiter(requests_per_minute=5, window_s=0.1), list[float]()

    async def call() -> None:
        at.append((await limiter.take()).at)

    await asyncio.gather(*(call() for _ in range(23)))
    assert len(at) == 23
    assert all(later - at[i] >= 0.1 - 1e-6 for i, later in enumerate(at[5:]))
    assert at[-1] - at[0] < 20.0  # 4 windows; it does not wait for longer than it must


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
        at.append((await limiter.take()).at)

    for _ in range(3):
        asyncio.run(call())
    assert all(b - a >= 0.1 - 1e-6 for a, b in pairwise(at))


@pytest.mark.parametrize("key", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=0; 1 or more is allowed, and null for no limit"):
        RateLimiter(**{key: 0})  # type: ignore[arg-type]


# --- per second: evenly spaced, on a clock of its own


def in_virtual_time(main: Coroutine[Any, Any, T], late: Callable[[], float] = lambda: 0.0) -> T:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(late)) as runner:
        return runner.run(main)


async def times(limiter: RateLimiter, n: int) -> list[float]:
    """When each of n calls that come together goes."""
    loop, at = asyncio.get_running_loop(), list[float]()

    async def call() -> None:
        await limiter.take()
        at.append(loop.time())

    await asyncio.gather(*(call() for _ in range(n)))
    return at


@pytest.mark.parametrize("per_second", [0.2, 1, 7, 50, 1000])
def test_calls_go_evenly_apart(per_second: float) -> None:
    at = in_virtual_time(times(RateLimiter(requests_per_second=per_second), 200))
    assert at == pytest.approx([i / per_second for i in range(200)])


@pytest.mark.parametrize("per_second", [0.5, 3, 20, 100])
def test_a_loop_that_is_late_holds_the_rate(per_second: float) -> None:
    rng = random.Random(7)
    late = partial(rng.uniform, 0.0, 0.019)
    at = in_virtual_time(times(RateLimiter(requests_per_second=per_second), 1000), late)
    assert 999 / (at[-1] - at[0]) == pytest.approx(per_second, rel=0.005)
    assert most_in_a_second(at) <= per_second * 1.02 + 1


def test_a_loop_that_stood_still_does_not_make_up_for_it() -> None:
    waits = iter([0.0] * 100 + [5.0] + [0.0] * 1000)
    at = in_virtual_time(times(RateLimiter(requests_per_second=20), 300), lambda: next(waits))
    assert most_in_a_second(at) <= 20 * 1.02 + 1
    assert max(later - earlier for earlier, later in pairwise(at)) > 5


def most_in_a_second(at: list[float]) -> int:
    return max(sum(start <= t < start + 1 - 1e-9 for t in at) for start in at)


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_waiters_spend_no_turn_and_change_no_order(seed: int) -> None:
    """Of calls that come and are given up at random, those that stay go in the order in which they came, and, as long
    as anybody waits, one each 1/10 s."""
    rng = random.Random(seed)

    async def churn() -> tuple[list[int], list[int], list[float]]:
        limiter, loop = RateLimiter(requests_per_second=10), asyncio.get_running_loop()
        order, at = list[int](), list[float]()

        async def call(i: int) -> None:
            await limiter.take()
            order.append(i)
            at.append(loop.time())

        tasks = [asyncio.create_task(call(i)) for i in range(120)]
        given_up = set(rng.sample(range(120), 60))
        for i in sorted(given_up, key=lambda _: rng.random()):
            await asyncio.sleep(rng.choice([0, 0, 0.05, 0.1]))
            tasks[i].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order, [i for i, task in enumerate(tasks) if not task.cancelled()], at

    order, stayed, at = in_virtual_time(churn())
    assert order == stayed
    assert at == pytest.approx([i / 10 for i in range(len(at))])


def test_a_turn_that_is_given_up_in_its_own_tick_is_the_next_one_s() -> None:
    async def main() -> list[float]:
        limiter, loop = RateLimiter(requests_per_second=1), asyncio.get_running_loop()
        await limiter.take()
        first, second = (asyncio.create_task(times(limiter, 1)) for _ in range(2))
        await asyncio.sleep(0)
        loop.call_at(1.0 + 5e-10, first.cancel)  # after its grant, before it hears of it
        return await second

    assert in_virtual_time(main()) == pytest.approx([1.0])


def test_limits_by_the_second_and_by_the_minute_hold_together() -> None:
    at = in_virtual_time(times(RateLimiter(requests_per_second=2, requests_per_minute=10), 25))
    assert at == pytest.approx([60 * (i // 10) + (i % 10) / 2 for i in range(25)])


def test_nothing_goes_while_the_backend_asks_for_quiet() -> None:
    async def main() -> list[float]:
        limiter = RateLimiter(requests_per_second=2)
        calls = asyncio.create_task(times(limiter, 4))
        await asyncio.sleep(0.6)
        limiter.hold(3)
        limiter.hold(1)
        return await calls

    assert in_virtual_time(main()) == pytest.approx([0, 0.5, 3.6, 4.1])


@pytest.mark.slow  # and of an idle machine
async def test_the_rate_in_real_time() -> None:
    at = await times(RateLimiter(requests_per_second=50), 101)
    assert 100 / (at[-1] - at[0]) == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("given", [0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none(given: float) -> None:
    with pytest.raises(ConfigError, match=rf"requests_per_second={given}; above 0 is allowed, and null for no limit"):
        RateLimiter(requests_per_second=given)


# --- how many at once, where the backend refuses


async def served(
    limiter: RateLimiter, calls: int, *, places: int, seconds: float, pause_s: float
) -> tuple[float, int, int]:
    """What so many calls take that come together to a backend with `places`; how many it refused; the most it had."""
    loop = asyncio.get_running_loop()
    taken = refused = most = 0

    async def call() -> None:
        nonlocal taken, refused, most
        grant = None
        while True:
            async with limiter.turn(again=grant) as grant:
                if taken < places:
                    taken += 1
                    await asyncio.sleep(seconds)
                    taken -= 1
                    limiter.answered()
                    return
                await asyncio.sleep(0.01)  # the way there and back
                refused += 1
                most = max(most, limiter._lines.get().live)
                limiter.refused(grant, pause_s)
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(call() for _ in range(calls)))
    return loop.time(), refused, most


@pytest.mark.parametrize("places", [1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("seconds", [0.2, 1.5, 10.0])
@pytest.mark.parametrize("pause_s", [0.1, 1.0])
def test_a_backend_s_places_are_found_and_kept_busy(places: int, seconds: float, pause_s: float) -> None:
    took, refused, most = in_virtual_time(served(RateLimiter(), 400, places=places, seconds=seconds, pause_s=pause_s))
    assert took <= 1.5 * 400 / places * seconds
    assert refused <= 800
    assert most == 400


def test_a_backend_that_never_refuses_has_all_at_once() -> None:
    took, refused, _ = in_virtual_time(served(RateLimiter(), 400, places=400, seconds=1.0, pause_s=1.0))
    assert (took, refused) == (1.0, 0)


def test_a_refusal_to_a_call_that_is_alone_holds_all_others() -> None:
    async def main() -> list[float]:
        limiter = RateLimiter()
        async with limiter.turn() as first, limiter.turn():
            limiter.refused(first, 9.0)  # one of two: one too many, and not too soon
        async with limiter.turn() as grant:
            limiter.refused(grant, 3.0)
        return await times(limiter, 1)

    assert in_virtual_time(main()) == pytest.approx([3.0])


def test_a_call_that_is_refused_goes_before_those_that_came_after_it() -> None:
    async def main() -> list[str]:
        limiter, order = RateLimiter(), list[str]()
        async with limiter.turn() as grant:
            limiter.refused(grant, 1.0)
        waiting = [asyncio.create_task(granted(limiter, order, name)) for name in "bc"]
        await asyncio.sleep(0)

        async def again() -> None:
            async with limiter.turn(again=grant):
                order.append("a")

        await again()
        waiting[1].cancel()  # there is one place, and b keeps it
        return order

    assert in_virtual_time(main())[0] == "a"


def test_who_gives_up_takes_along_who_has_waited_as_long() -> None:
    async def main() -> list[str]:
        limiter, ends = RateLimiter(), list[str]()

        async def wait(name: str) -> None:
            try:
                async with limiter.turn():
                    ends.append(f"{name} goes")
            except TimeoutError:
                ends.append(f"{name} gives up")

        async with limiter.turn() as grant:
            limiter.refused(grant, 60.0)
        old = asyncio.create_task(wait("old"))
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        new = asyncio.create_task(wait("new"))
        await asyncio.sleep(5)
        limiter.give_up(began - 1)
        await asyncio.gather(old, new)
        return ends

    assert in_virtual_time(main()) == ["old gives up", "new goes"]
