from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from agentgrpo.core.concurrency import LONG, Batcher, Limiter, PerLoop, off_loop, on_idle_loop
from agentgrpo.core.errors import ConfigError

Calls = list[tuple[str, list[str]]]


async def ticks(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def upper(
    calls: Calls, gate: asyncio.Event | None = None
) -> Callable[[str, list[str], float], Awaitable[Sequence[str]]]:
    """Answers each key with its capitals, once `gate` is open."""

    async def answer(group: str, keys: list[str], arrived: float) -> list[str]:
        calls.append((group, keys))
        if gate is not None:
            await gate.wait()
        return [key.upper() for key in keys]

    return answer


def test_per_loop_makes_one_value_for_each_loop_and_forgets_closed_ones() -> None:
    made = iter("abc")
    per_loop = PerLoop(lambda: next(made))

    async def twice() -> str:
        return per_loop.get() + per_loop.get()

    assert [asyncio.run(twice()), asyncio.run(twice())] == ["aa", "bb"]
    assert list(per_loop._values.values()) == ["b"]


async def test_per_loop_pop_gives_the_value_away() -> None:
    per_loop = PerLoop(lambda: "a")
    assert per_loop.pop() is None
    assert (per_loop.get(), per_loop.pop(), per_loop.pop()) == ("a", "a", None)


async def test_limiter_serves_in_order_of_arrival_and_lets_nobody_overtake() -> None:
    limiter, order = Limiter(1), []

    async def hold(name: str) -> None:
        async with limiter:
            order.append(name)
            await ticks(1)

    async def newcomer() -> None:
        await ticks(1)  # arrives in the very tick in which the first holder leaves
        await hold("newcomer")

    await asyncio.gather(hold("a"), hold("b"), hold("c"), newcomer())
    assert order == ["a", "b", "c", "newcomer"]


async def test_limiter_never_has_more_holders_than_its_limit() -> None:
    limiter, live, most = Limiter(3), 0, 0

    async def hold() -> None:
        nonlocal live, most
        async with limiter:
            live += 1
            most = max(most, live)
            await ticks(2)
            live -= 1

    await asyncio.gather(*(hold() for _ in range(20)))
    assert (most, live) == (3, 0)


@pytest.mark.parametrize("cancel_after_wake_up", [False, True])
async def test_a_cancelled_waiter_spends_no_slot(cancel_after_wake_up: bool) -> None:
    limiter, entered = Limiter(1), []
    release = asyncio.Event()

    async def hold(name: str, until: asyncio.Event | None = None) -> None:
        async with limiter:
            entered.append(name)
            if until is not None:
                await until.wait()

    holder = asyncio.create_task(hold("holder", release))
    await ticks()
    cancelled, patient = asyncio.create_task(hold("cancelled")), asyncio.create_task(hold("patient"))
    await ticks()
    if cancel_after_wake_up:
        release.set()
        await ticks(1)  # the holder has left and the slot is on its way to `cancelled`
    cancelled.cancel()
    release.set()
    async with asyncio.timeout(60):
        await asyncio.gather(holder, patient, cancelled, return_exceptions=True)
        async with limiter:
            entered.append("last")
    assert entered == ["holder", "patient", "last"]


def test_a_limiter_serves_consecutive_loops() -> None:
    limiter = Limiter(1)

    async def two() -> list[int]:
        async def one(i: int) -> int:
            async with limiter:
                await ticks(1)
                return i

        return list(await asyncio.gather(one(1), one(2)))

    assert [asyncio.run(two()) for _ in range(3)] == [[1, 2]] * 3


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 concurrent calls; at least 1"):
        Limiter(0)
    with pytest.raises(ConfigError, match="max_batch=0; at least 1"):
        Batcher(upper([]), max_batch=0, limiter=Limiter(1))


async def test_questions_of_one_tick_are_one_call_and_each_gets_its_own_answer() -> None:
    calls: Calls = []
    batcher = Batcher(upper(calls), max_batch=8, limiter=Limiter(1))
    assert await asyncio.gather(*(batcher.ask("g", key) for key in "cabca")) == ["C", "A", "B", "C", "A"]
    assert calls == [("g", ["c", "a", "b"])]
    assert await batcher.ask("g", "a") == "A"  # answered before, not in flight: asked again
    assert calls == [("g", ["c", "a", "b"]), ("g", ["a"])]


async def test_batches_are_bounded_and_groups_stay_apart() -> None:
    calls: Calls = []
    batcher = Batcher(upper(calls), max_batch=2, limiter=Limiter(1))
    asked = [("g", "a"), ("h", "a"), ("g", "b"), ("g", "c"), ("h", "b")]
    assert await asyncio.gather(*(batcher.ask(*question) for question in asked)) == ["A", "A", "B", "C", "B"]
    assert calls == [("g", ["a", "b"]), ("h", ["a", "b"]), ("g", ["c"])]


async def test_what_arrives_while_all_slots_are_taken_becomes_one_call() -> None:
    calls: Calls = []
    gate = asyncio.Event()
    batcher = Batcher(upper(calls, gate), max_batch=8, limiter=Limiter(1))
    asked = []
    for key in "abca":
        asked.append(asyncio.create_task(batcher.ask("g", key)))
        await ticks()
    assert calls == [("g", ["a"])]
    gate.set()
    assert await asyncio.gather(*asked) == ["A", "B", "C", "A"]
    assert calls == [("g", ["a"]), ("g", ["b", "c"])]


async def test_a_call_learns_when_its_oldest_question_arrived() -> None:
    arrivals: list[float] = []
    release = asyncio.Event()

    async def answer(group: str, keys: list[str], arrived: float) -> list[str]:
        arrivals.append(arrived)
        await release.wait()
        return keys

    batcher = Batcher(answer, max_batch=8, limiter=Limiter(1))
    loop = asyncio.get_running_loop()
    first = asyncio.create_task(batcher.ask("g", "a"))
    await asyncio.sleep(0.02)
    before = loop.time()
    second = asyncio.create_task(batcher.ask("g", "b"))
    await ticks()
    after = loop.time()
    await asyncio.sleep(0.02)
    third = asyncio.create_task(batcher.ask("g", "c"))
    await ticks()
    release.set()
    await asyncio.gather(first, second, third)
    assert len(arrivals) == 2
    assert arrivals[0] < before <= arrivals[1] <= after


async def test_a_failed_key_fails_alone_and_a_failed_call_fails_all() -> None:
    async def picky(group: str, keys: list[str], arrived: float) -> list[str | Exception]:
        return [ValueError(key) if key == "bad" else key for key in keys]

    async def broken(group: str, keys: list[str], arrived: float) -> list[str]:
        raise KeyError("down")

    async def short(group: str, keys: list[str], arrived: float) -> list[str]:
        return keys[:1]

    for answer, expected in (
        (picky, ["'a'", "ValueError('bad')", "'b'"]),
        (broken, ["KeyError('down')"] * 3),
        (short, ["RuntimeError('3 questions got 1 answers; give each question one')"] * 3),
    ):
        batcher: Batcher[str, str, str] = Batcher(answer, max_batch=8, limiter=Limiter(1))
        asked = (batcher.ask("g", key) for key in ("a", "bad", "b"))
        assert [repr(x) for x in await asyncio.gather(*asked, return_exceptions=True)] == expected


async def test_one_of_two_askers_may_leave() -> None:
    calls: Calls = []
    gate = asyncio.Event()
    batcher = Batcher(upper(calls, gate), max_batch=8, limiter=Limiter(1))
    leaver, stayer = (asyncio.create_task(batcher.ask("g", "a")) for _ in range(2))
    await ticks()
    leaver.cancel()
    await ticks()
    gate.set()
    assert await stayer == "A"
    assert leaver.cancelled()
    assert calls == [("g", ["a"])]


async def test_a_question_that_nobody_waits_for_is_not_asked_and_a_call_for_nobody_is_stopped() -> None:
    calls: Calls = []
    limiter = Limiter(1)
    batcher = Batcher(upper(calls, asyncio.Event()), max_batch=8, limiter=limiter)
    in_call = [asyncio.create_task(batcher.ask("g", key)) for key in "ab"]
    await ticks()
    queued = asyncio.create_task(batcher.ask("g", "c"))
    await ticks()
    queued.cancel()
    in_call[0].cancel()
    await ticks()
    assert calls == [("g", ["a", "b"])]
    assert not in_call[1].done()  # the call goes on for "b"
    in_call[1].cancel()
    await ticks()
    async with asyncio.timeout(60), limiter:  # the call was stopped and gave its slot back; "c" took none
        assert calls == [("g", ["a", "b"])]


async def test_a_question_given_up_is_asked_anew_when_it_comes_again() -> None:
    calls: Calls = []
    gate = asyncio.Event()
    batcher = Batcher(upper(calls, gate), max_batch=8, limiter=Limiter(2))
    first = asyncio.create_task(batcher.ask("g", "a"))
    await ticks()
    first.cancel()
    again = asyncio.create_task(batcher.ask("g", "a"))
    await ticks()
    gate.set()
    assert await again == "A"
    assert calls == [("g", ["a"]), ("g", ["a"])]


@pytest.mark.parametrize("while_queued", [False, True])
async def test_a_call_cancelled_from_outside_leaves_nobody_waiting(while_queued: bool) -> None:
    calls: Calls = []
    limiter = Limiter(1)
    batcher = Batcher(upper(calls, asyncio.Event()), max_batch=8, limiter=limiter)
    before = asyncio.all_tasks()
    if while_queued:
        await limiter.__aenter__()
    asked = asyncio.create_task(batcher.ask("g", "a"))
    await ticks()
    for task in asyncio.all_tasks() - before - {asked}:
        task.cancel()
    await asyncio.wait([asked], timeout=1)
    assert asked.cancelled()
    if while_queued:
        await limiter.__aexit__()
    again = asyncio.create_task(batcher.ask("g", "b"))
    await ticks()
    assert calls[-1] == ("g", ["b"])  # and the batcher still works
    again.cancel()


def test_a_batcher_serves_consecutive_loops_even_after_one_died_with_questions_open() -> None:
    calls: Calls = []
    batcher = Batcher(upper(calls), max_batch=8, limiter=Limiter(1))

    async def die() -> None:
        stuck = asyncio.create_task(batcher.ask("g", "never"))
        await asyncio.sleep(0)
        assert not stuck.done()

    async def live() -> list[str]:
        return list(await asyncio.gather(batcher.ask("g", "a"), batcher.ask("g", "b")))

    asyncio.run(die())
    assert [asyncio.run(live()), asyncio.run(live())] == [["A", "B"], ["A", "B"]]
    assert calls == [("g", ["a", "b"])] * 2


# --- a loop on which nothing computes


async def test_the_idle_loop_gives_back_what_is_returned_and_raised() -> None:
    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise ValueError(f"{value} is negative")
        return value + 1

    assert await asyncio.gather(*(on_idle_loop(answer(i)) for i in range(20))) == [*range(1, 21)]
    with pytest.raises(ValueError, match="-3 is negative"):
        await on_idle_loop(answer(-3))


async def test_a_cancelled_caller_of_the_idle_loop_waits_for_the_end() -> None:
    told, here, began = list[str](), asyncio.get_running_loop(), asyncio.Event()

    async def work() -> None:
        try:
            here.call_soon_threadsafe(began.set)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            told.append("ended")

    call = asyncio.create_task(on_idle_loop(work()))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert told == ["ended"]


async def test_short_work_is_done_at_once_and_long_work_beside_the_loop() -> None:
    assert await off_loop(threading.current_thread, size=LONG) is threading.current_thread()
    done, beats = threading.Event(), 0
    work = asyncio.create_task(off_loop(done.wait, size=LONG + 1))
    while beats < 20:
        await asyncio.sleep(0)
        beats += 1
    assert not work.done()
    done.set()
    assert await work is True
    with pytest.raises(ZeroDivisionError):
        await off_loop(lambda: 1 // 0, size=LONG + 1)


async def test_a_cancelled_caller_goes_when_the_work_is_over_and_work_in_the_queue_is_never_begun() -> None:
    begun, go, order = threading.Semaphore(0), threading.Event(), list[str]()

    def work(name: str) -> None:
        begun.release()
        go.wait()
        order.append(name)

    running = [asyncio.create_task(off_loop(lambda name=name: work(name), size=LONG + 1)) for name in "abc"]
    for _ in range(2):
        await asyncio.to_thread(begun.acquire)
    for task in running:
        task.cancel()
    await ticks()
    assert [task.done() for task in running] == [False, False, True]
    go.set()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*running, return_exceptions=True))
    assert sorted(order) == ["a", "b"]


async def test_functions_that_hold_all_threads_of_the_loop_hold_up_no_reading() -> None:
    free = threading.Event()
    held = [asyncio.create_task(asyncio.to_thread(free.wait)) for _ in range(64)]
    await ticks()
    assert await off_loop(lambda: "read", size=LONG + 1) == "read"
    free.set()
    await asyncio.gather(*held)
