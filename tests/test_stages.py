"""The stage clock: every nanosecond goes to exactly one stage."""

from __future__ import annotations

import asyncio

import pytest

from agentgrpo.core.stages import NoClock, Stage, StageClock


class Time:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 10**15

    def __call__(self) -> int:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


def clock_and_time() -> tuple[StageClock, Time]:
    time = Time()
    return StageClock(now_ns=time), time


def spent(clock: StageClock) -> dict[str, float]:
    """The lap's total and the stages that took any time."""
    return {name: seconds for name, seconds in clock.lap().items() if seconds}


def test_an_inner_stage_is_not_its_outers() -> None:
    clock, time = clock_and_time()
    time.passes(1)
    with clock.stage(Stage.PACK):
        time.passes(2)
        with clock.stage(Stage.FORWARD):
            time.passes(4)
            with clock.stage(Stage.PACK):
                time.passes(8)
        time.passes(16)
    time.passes(32)
    assert spent(clock) == {"total": 63.0, "pack": 26.0, "forward": 4.0, "other": 33.0}


def test_a_lap_has_every_stage_and_the_next_begins_where_it_ends() -> None:
    clock, time = clock_and_time()
    with clock.stage(Stage.SYNC):
        time.passes(1)
        assert list(clock.lap()) == ["total", *(stage.value for stage in Stage)]
        time.passes(2)
    assert spent(clock) == {"total": 2.0, "sync": 2.0}
    assert spent(clock) == {}


def test_the_time_of_a_rollout_is_what_it_waits_for() -> None:
    """Generation before tools before the stage itself, however the calls overlap."""
    clock, time = clock_and_time()
    with clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION, Stage.TOOLS)):
        time.passes(1)  # queue
        tool = clock.call(Stage.TOOLS)
        tool.__enter__()
        time.passes(2)  # tools
        first, second = clock.call(Stage.GENERATION), clock.call(Stage.GENERATION)
        first.__enter__()
        second.__enter__()
        time.passes(4)  # generation hides the tool
        first.__exit__(None, None, None)
        time.passes(8)  # still
        second.__exit__(None, None, None)
        time.passes(16)  # tools
        tool.__exit__(None, None, None)
        time.passes(32)  # queue
    assert spent(clock) == {"total": 63.0, "generation": 12.0, "tools": 18.0, "queue": 33.0}


def test_calls_count_only_where_a_stage_says_so() -> None:
    clock, time = clock_and_time()
    with clock.stage(Stage.EVALUATION), clock.call(Stage.GENERATION):
        time.passes(1)
    with clock.call(Stage.GENERATION):
        time.passes(2)
        with clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION,)):
            time.passes(4)
            with clock.stage(Stage.RECORDS):
                time.passes(8)
    assert spent(clock) == {"total": 15.0, "evaluation": 1.0, "other": 2.0, "generation": 4.0, "records": 8.0}


def test_what_fails_or_is_cancelled_is_closed_all_the_same() -> None:
    clock, time = clock_and_time()

    def fail() -> None:
        with clock.stage(Stage.REWARD), clock.call(Stage.TOOLS):
            time.passes(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with clock.stage(Stage.QUEUE, calls_first=(Stage.TOOLS,)):
        time.passes(2)

    async def hang() -> None:
        with clock.stage(Stage.QUEUE, calls_first=(Stage.TOOLS,)), clock.call(Stage.TOOLS):
            time.passes(4)
            await asyncio.sleep(60)

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hang(), 0.01)

    asyncio.run(cancelled())
    time.passes(8)
    assert spent(clock) == {"total": 15.0, "reward": 1.0, "queue": 2.0, "tools": 4.0, "other": 8.0}


def test_what_a_device_still_has_in_hand_is_waited_for_within_the_stage_that_ordered_it() -> None:
    time = Time()
    ordered = [0.0]

    def settle() -> None:
        time.passes(ordered.pop() if ordered else 0.0)

    clock = StageClock(now_ns=time, settle=settle)
    with clock.stage(Stage.FORWARD):  # settles what was ordered before: nothing
        ordered.append(5.0)
    with clock.stage(Stage.BACKWARD):
        ordered.append(7.0)
        with clock.stage(Stage.RECORDS):
            ordered.append(1.0)
    assert spent(clock) == {"total": 13.0, "forward": 5.0, "backward": 7.0, "records": 1.0}


def test_the_sum_is_the_total_on_a_real_clock() -> None:
    clock = StageClock()
    for _ in range(1000):
        with clock.stage(Stage.QUEUE, calls_first=(Stage.TOOLS,)), clock.call(Stage.TOOLS):
            pass
    lap = clock.lap()
    assert lap["total"] > 0
    assert sum(lap[stage.value] for stage in Stage) == pytest.approx(lap["total"], rel=1e-12)


def test_no_clock_takes_nothing() -> None:
    clock = NoClock()
    with clock.stage(Stage.QUEUE, calls_first=(Stage.TOOLS,)), clock.call(Stage.TOOLS):
        pass
    assert clock.lap() == {}
