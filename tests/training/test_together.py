"""What several processes do together: work shared out, one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from agentgrpo.core.errors import DataError, Preempted, TooManyFailures
from agentgrpo.training.process_group import Alone, ProcessGroup, agree, agree_on, in_turn, once, only_first, share
from tests.training.several import on

ITEMS = [3, 1, 4, 1, 5]


async def doubled(items: Sequence[int]) -> list[int]:
    await asyncio.sleep(0)
    return [2 * x for x in items]


def shares(world: ProcessGroup, items: Sequence[int]) -> list[int]:
    return asyncio.run(share(world, items, doubled))


@pytest.mark.parametrize("items", [ITEMS, ITEMS[:1], []])
def test_results_come_in_the_order_of_the_items_on_every_process(items: list[int]) -> None:
    expected = [2 * x for x in items]
    assert shares(Alone(), items) == expected
    assert on(3, shares, items) == [expected] * 3


class Odd(Exception):
    """Does not survive the journey."""

    def __init__(self, message: str, *, needed: int) -> None:
        super().__init__(f"{message} {needed}")


ERRORS: dict[str, tuple[Callable[[int], Exception | None], list[tuple[type, str]]]] = {
    "one": (
        lambda rank: TooManyFailures("9 of 9") if rank == 1 else None,
        [(TooManyFailures, "9 of 9"), (TooManyFailures, "9 of 9")],
    ),
    "both": (lambda rank: DataError(f"on {rank}"), [(DataError, "on 0"), (DataError, "on 0")]),
    "stop": (
        lambda rank: Preempted("stopped") if rank else DataError("no"),
        [(Preempted, "stopped"), (Preempted, "stopped")],
    ),
    "odd": (lambda rank: Odd("it is", needed=3) if rank else None, [(RuntimeError, "Odd: it is 3"), (Odd, "it is 3")]),
}


def fails(world: ProcessGroup, name: str) -> list[tuple[type, str]]:
    """What `share`, `agree` and `once` raise."""
    error = ERRORS[name][0](world.rank)

    async def work(items: Sequence[int]) -> list[int]:
        if error is not None:
            raise error
        return list(items)

    def now() -> None:
        if error is not None:
            raise error

    found = []
    for attempt in (lambda: asyncio.run(share(world, ITEMS, work)), lambda: agree(world, now)):
        try:
            attempt()
        except Exception as e:
            found.append((type(e), str(e)))
    return found


@pytest.mark.parametrize("name", ERRORS)
def test_what_one_raises_all_raise(name: str) -> None:
    expected = ERRORS[name][1]
    assert on(2, fails, name) == [[e, e] for e in expected]


def test_alone_an_error_is_the_very_same() -> None:
    error = Odd("it is", needed=1)

    def work() -> None:
        raise error

    with pytest.raises(Odd) as caught:
        agree(Alone(), work)
    assert caught.value is error


def times_out(world: ProcessGroup, slow: str, limited: int) -> str:
    """Two shares in a row, by a time limit for one process; `slow` says where which of them takes too long."""

    async def first(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(2.0 if slow == f"first {world.rank}" else 0.0)
        return list(items)

    async def second(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(2.0 if slow == f"second {world.rank}" else 0.0)
        return list(items)

    async def both() -> list[int]:
        return await share(world, await share(world, ITEMS, first), second)

    async def run() -> list[int]:
        return await agree_on(world, asyncio.wait_for(both(), 1.0 if world.rank == limited else 30.0))

    try:
        found = asyncio.run(run())
    except TimeoutError:
        return "TimeoutError"
    return f"{found}, then {world.gather(world.rank)}"


@pytest.mark.parametrize(
    "slow, expected",
    [
        ("nobody", f"{ITEMS}, then [0, 1]"),
        ("first 0", "TimeoutError"),  # one is cancelled at work, or while it waits for the other's part
        ("first 1", "TimeoutError"),
        ("second 0", "TimeoutError"),
        ("second 1", "TimeoutError"),
    ],
)
@pytest.mark.parametrize("limited", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_time_limit_of_one_is_met_by_all_wherever_it_strikes(slow: str, expected: str, limited: int) -> None:
    assert on(2, times_out, slow, limited) == [expected, expected]


def takes_turns(world: ProcessGroup) -> tuple[Any, ...]:
    done: list[int] = []

    def work() -> str:
        done.append(world.rank)
        return f"by {world.rank}"

    idle = only_first(world, lambda: done)
    idle.append(7)
    with only_first(world, lambda: asyncio.Runner()):
        pass
    return once(world, work), in_turn(world, work), done


def test_once_in_turn_and_only_first() -> None:
    assert on(2, takes_turns) == [("by 0", "by 0", [7, 0, 0]), ("by 0", "by 1", [1])]
    assert takes_turns(Alone()) == ("by 0", "by 0", [7, 0, 0])


def test_agree_on_alone_is_the_work_itself() -> None:
    async def work() -> int:
        return 5

    found: Coroutine[Any, Any, int] = agree_on(Alone(), work())
    assert asyncio.run(found) == 5
