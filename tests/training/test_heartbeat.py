"""Who is lost: by the signs alone, and with real processes that are killed, frozen, stuck or at odds."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.core.errors import DataError, ProcessError
from agentgrpo.training.process_group import ProcessGroup
from agentgrpo.training.processes import DONE, LEAVE_S, Judge, Sign
from agentgrpo.training.sharding import shard
from tests.grpo.tiny import tiny_model
from tests.thorough import is_thorough, late, siblings
from tests.training.several import on, started

TIMEOUT_S = 2.0
ENDS = "; the run ends on all processes and can be resumed"


# --- the judge


def judged(*heard: tuple[float, list[Sign]], at: float) -> str | None:
    judge = Judge(rank=0, size=2, timeout_s=10.0, now=0.0)
    for now, signs in heard:
        judge.hear(signs, now)
    return judge.verdict(at)


ALIVE = Sign(beat=1, phase="the update of step 3")


def test_who_beats_is_not_lost_however_long_it_works() -> None:
    beats = [(float(i), [Sign(beat=i), ALIVE._replace(beat=i)]) for i in range(100)]
    assert judged(*beats, at=100.0) is None


def test_who_stops_beating_is_lost_after_the_timeout() -> None:
    heard = [(0.0, [ALIVE, ALIVE]), (9.0, [ALIVE._replace(beat=9), ALIVE])]
    assert judged(*heard, at=10.0) is None
    assert judged(*heard, at=10.1) == (
        "rank 1 of 2 was last at: the update of step 3 and gives no sign of life for 10 s"
    )
    assert judged((0.0, [ALIVE, ALIVE._replace(end=DONE)]), at=99.0) is None


def test_a_main_thread_that_neither_works_nor_waits_is_lost() -> None:
    stuck = ALIVE._replace(idle_s=10.1)
    assert judged((0.0, [ALIVE, ALIVE._replace(idle_s=10.0)]), at=1.0) is None
    assert judged((0.0, [ALIVE, stuck]), at=1.0) == (
        "rank 1 of 2 was last at: the update of step 3 and has come to a standstill for 10 s"
    )
    assert str(judged((0.0, [stuck, ALIVE]), at=1.0)).startswith("rank 0 of 2")


def test_an_end_is_told_at_once() -> None:
    assert judged((0.0, [ALIVE, ALIVE._replace(end="DataError: no file")]), at=0.0) == (
        "rank 1 of 2 was last at: the update of step 3 and has ended: DataError: no file"
    )


def test_all_waiting_without_end_are_lost() -> None:
    waiting = ALIVE._replace(waiting=True)
    heard = [(float(i), [waiting._replace(beat=i), waiting._replace(beat=i)]) for i in range(12)]
    assert judged(*heard[:10], at=9.0) is None
    assert str(judged(*heard, at=11.0)).startswith("all processes wait for one another: rank 0 of 2")
    moving = [(now, [a, b._replace(joined=int(now))]) for now, (a, b) in heard]
    assert judged(*moving, at=11.0) is None
    computing = [(now, [a, b._replace(waiting=False)]) for now, (a, b) in heard]
    assert judged(*computing, at=11.0) is None


# --- processes


def waits(world: ProcessGroup, ready: Any) -> None:
    """Rank 0 waits for rank 1, which is at step 7."""
    world.phase = "the start"
    world.gather(None)
    world.phase = f"step {7 * world.rank}"
    ready.put(world.rank)
    if world.rank:
        time.sleep(60)
    world.gather(None)


def lost(number: signal.Signals) -> tuple[list[BaseProcess], Any, float]:
    """What rank 0 raises when rank 1 gets a signal, and the seconds until it has left."""
    from tests.training.several import CONTEXT

    ready = CONTEXT.SimpleQueue()
    with started(2, waits, ready, timeout_s=TIMEOUT_S) as (processes, queue):
        ready.get(), ready.get()
        time.sleep(5 * TIMEOUT_S / 10)  # its phase is known
        began = time.monotonic()
        os.kill(processes[1].pid or 0, number)
        rank, error = pickle.loads(queue.get())
        processes[0].join(60)
        seconds = time.monotonic() - began
        assert (rank, processes[0].exitcode) == (0, 7)
    return processes, error, seconds


@pytest.mark.clock
@pytest.mark.parametrize(
    "number, text",
    siblings([(signal.SIGSTOP, "and gives no sign of life for 2 s"), (signal.SIGKILL, "and is gone")], quick=1),
)
def test_a_process_that_is_killed_or_frozen_ends_the_others_in_time(number: signal.Signals, text: str) -> None:
    _, error, seconds = lost(number)
    assert type(error) is ProcessError
    assert str(error) == f"rank 1 of 2 was last at: step 7 {text}{ENDS}"
    assert not (is_thorough() and seconds >= TIMEOUT_S + LEAVE_S)


def deadlocks(world: ProcessGroup, directory: Path) -> None:
    world.keep_stacks(directory)
    world.phase = f"step {world.rank}"
    if world.rank:
        threading.Lock().acquire(), (lock := threading.Lock()).acquire()
        lock.acquire()
    world.gather(None)


@pytest.mark.slow
def test_a_deadlock_ends_all_and_leaves_the_stacks(tmp_path: Path) -> None:
    with started(2, deadlocks, tmp_path, timeout_s=TIMEOUT_S) as (processes, queue):
        rank, error = pickle.loads(queue.get())  # of rank 0: rank 1 cannot say anything any more
        for process in processes:
            process.join(60)
        assert [p.exitcode for p in processes] == [7, 7]
    assert (rank, str(error)) == (
        0,
        f"rank 1 of 2 was last at: step 1 and has come to a standstill for 2 s{ENDS}",
    )
    assert "in deadlocks" in (tmp_path / "stacks-rank-1.txt").read_text()
    assert "in gather" in (tmp_path / "stacks-rank-0.txt").read_text()


def is_at_odds(world: ProcessGroup, how: str) -> None:
    world.phase = "the beginning"
    if how == "error" and world.rank:
        raise DataError("no such file")
    if how == "phase":
        world.phase = f"phase {world.rank}"
    if how == "collective" and world.rank:
        world.add_up([torch.ones(3)])
    world.gather(None)


@pytest.mark.parametrize(
    "how, expected",
    [
        ("error", "rank 1 of 2 was last at: the beginning and has ended: DataError: no such file"),
        ("phase", "the processes are out of step, rank 0 at: phase 0, rank 1 at: phase 1"),
    ],
)
def test_an_error_of_one_process_and_other_turns_end_all(how: str, expected: str) -> None:
    first, second = on(2, is_at_odds, how, timeout_s=3 * TIMEOUT_S)
    assert str(first) == expected + ENDS
    assert str(second) == ("no such file" if how == "error" else expected + ENDS)


@pytest.mark.slow
def test_different_collectives_do_not_hang() -> None:
    for error in on(2, is_at_odds, "collective", timeout_s=TIMEOUT_S):
        assert type(error) is ProcessError


def computes(world: ProcessGroup, ready: Any) -> None:
    model = tiny_model()
    shard(model, world.size)
    world.phase = "a sharded pass"
    ready.put(world.rank)
    if world.rank:
        time.sleep(60)
    model(input_ids=torch.tensor([[1, 2, 3]]))


@pytest.mark.slow
@pytest.mark.clock
def test_who_is_stuck_in_a_collective_of_torchs_own_is_ended() -> None:
    from tests.training.several import CONTEXT

    ready = CONTEXT.SimpleQueue()
    with started(2, computes, ready, timeout_s=TIMEOUT_S) as (processes, _):
        ready.get(), ready.get()
        began = time.monotonic()
        os.kill(processes[1].pid or 0, signal.SIGSTOP)
        processes[0].join(60)
        assert processes[0].exitcode == 7
        assert not late(began, 2 * TIMEOUT_S + LEAVE_S)


class Stopped:
    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        self.event = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def request(self, signal_name: str) -> None:
        self.signal_name = signal_name
        self.loop.call_soon_threadsafe(self.event.set)

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)


def hears(world: ProcessGroup) -> str:
    async def run() -> str:
        stop = Stopped("SIGTERM" if world.rank else "")
        world.heed(stop)
        if not world.rank:
            await asyncio.wait_for(stop.event.wait(), 60)
        return stop.signal_name

    return asyncio.run(run())


def test_a_stop_reaches_all() -> None:
    assert on(2, hears, timeout_s=TIMEOUT_S) == ["SIGTERM", "SIGTERM"]


def idles(world: ProcessGroup) -> int:
    """An event loop that waits for a slow server, for longer than the timeout."""

    async def run() -> None:
        world.heed(Stopped(""))
        await asyncio.sleep(2 * TIMEOUT_S * (1 + world.rank))

    asyncio.run(run())
    return len(world.gather(None))


@pytest.mark.slow
def test_waiting_for_something_slow_is_no_standstill() -> None:
    assert on(2, idles, timeout_s=TIMEOUT_S) == [2, 2]
