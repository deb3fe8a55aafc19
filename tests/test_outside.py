"""Code of the user's own: whatever it raises, blocks, ignores, forks or changes, the caller goes on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from agentgrpo.core.concurrency import time_limit
from agentgrpo.core.errors import ConfigError, EnvironmentFailure, ProcessExit, boundary
from agentgrpo.core.interrupts import is_of_interrupt
from agentgrpo.core.outside import Caller, call_once, called, forks_ended, holding, run_loop

once = partial(call_once, EnvironmentFailure, "shop:Shop.step", "task t, sample 1")


class Loud(BaseException):
    """No Exception."""


RAISED: tuple[BaseException, ...] = (
    *(SystemExit(0), SystemExit("bye"), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("mine")),
    *(StopIteration(1), StopAsyncIteration(), BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("v")]), Loud()),
    *(TimeoutError(), RecursionError(), MemoryError(), AssertionError(), asyncio.InvalidStateError()),
)


def raising(error: BaseException, *, later: bool = False, alone: bool = False) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        if later:
            await asyncio.sleep(0)
        raise error

    def plainly() -> NoReturn:
        raise error

    return plainly if alone else step  # type: ignore[return-value]


@pytest.mark.parametrize("error", RAISED, ids=repr)
@pytest.mark.parametrize("where", ["at once", "after an await", "before it is a coroutine"])
async def test_whatever_it_raises_is_a_failure_of_the_call(error: BaseException, where: str) -> None:
    step = raising(error, later=where == "after an await", alone=where == "before it is a coroutine")
    with pytest.raises(EnvironmentFailure, match=r"^shop:Shop\.step: ") as failure:
        await once(step)
    assert not is_of_interrupt(failure.value)  # or its end would be taken for Ctrl-C


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_and_so_it_is_in_a_plain_function(error: BaseException) -> None:
    def term() -> NoReturn:
        raise error

    with pytest.raises((EnvironmentFailure, KeyboardInterrupt)) as failure, boundary(EnvironmentFailure, "term"):
        called(term).result()
    assert isinstance(failure.value, EnvironmentFailure) or isinstance(error, KeyboardInterrupt)


async def test_what_was_asked_for_passes() -> None:
    for error in (ConfigError("x"), ProcessExit(3)):
        with pytest.raises(type(error)):
            await once(raising(error))


async def test_it_cancels_its_own_task() -> None:
    async def now() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def too_late() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    caller = Caller("task t")
    with pytest.raises(EnvironmentFailure, match="a: CancelledError: the call was cancelled from inside"):
        await caller.call(EnvironmentFailure, "a", now)
    assert await caller.call(EnvironmentFailure, "b", too_late) == "done"
    assert await caller.call(EnvironmentFailure, "c", too_late) == "done"
    caller.end()


async def test_what_it_keeps_open_between_calls_stays_right() -> None:
    """A task group must be left in the task that has entered it; a context variable is seen by the next call."""
    held, name = asyncio.TaskGroup(), ContextVar("name", default="")

    async def reset() -> None:
        name.set("Velmor")
        await held.__aenter__()

    async def close() -> str:
        await held.__aexit__(None, None, None)
        return name.get()

    caller = Caller("task t")
    await caller.call(EnvironmentFailure, "reset", reset)
    assert await caller.call(EnvironmentFailure, "close", close) == "Velmor"
    caller.end()


async def test_a_cancelled_caller_says_where_it_was_and_may_clear_away() -> None:
    cleared: list[str] = []

    async def step() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            cleared.append("step")

    with pytest.raises(TimeoutError) as late:
        async with time_limit(0.05):
            await once(step)
    assert cleared == ["step"]
    assert late.value.__context__ is not None  # and its cause, from Python 3.12 on
    assert late.value.__context__.__notes__ == ["it was in shop:Shop.step"]


def test_a_task_that_ignores_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """And neither the attempt nor the end of the event loop waits for it."""
    swallowed: list[int] = []

    async def step() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed.append(1)

    async def attempt() -> None:
        caller = Caller("task t, sample 1")
        with pytest.raises(TimeoutError):
            async with time_limit(0.05):
                await caller.call(EnvironmentFailure, "shop:Shop.step", step)
        assert caller.is_ended
        with pytest.raises(EnvironmentFailure, match="not called, as an earlier call did not end") as failure:
            await caller.call(EnvironmentFailure, "shop:Shop.close", step)
        assert failure.value.kind == "left_behind"

    run_loop(attempt())
    assert len(swallowed) > 1
    assert "shop:Shop.step (task t, sample 1) did not stop within 5 s of its cancellation" in caplog.text


@pytest.mark.parametrize("how", ["sleeps", "computes", "waits for a lock", "swallows every Exception"])
def test_what_blocks_the_event_loop_is_interrupted_at_its_time_limit(how: str) -> None:
    async def step() -> None:
        if how == "sleeps":
            time.sleep(600)  # noqa: ASYNC251 - that is what is tested
        if how == "waits for a lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        while True:
            try:
                sum(range(1000))
            except Exception:
                if how != "swallows every Exception":
                    raise

    async def innocent() -> str:
        async with time_limit(0.7):
            await asyncio.sleep(0.5)
            return "in time"

    async def attempts() -> str:
        async def bad() -> None:
            async with time_limit(0.5):
                await once(step)

        async with asyncio.TaskGroup() as both:
            good, failed = both.create_task(innocent()), both.create_task(_failure(bad()))
        assert (failed.result().kind, good.result()) == ("timeout", "in time")
        return str(failed.result())

    text = run_loop(attempts())
    assert text.startswith("shop:Shop.step: it held up the event loop for ")
    assert "at test_outside.py:" in text


async def _failure(work: Awaitable[None]) -> EnvironmentFailure:
    with pytest.raises(EnvironmentFailure) as failure:
        await work
    return failure.value


@pytest.mark.slow
async def test_it_is_named_while_it_blocks(caplog: pytest.LogCaptureFixture) -> None:
    async def step() -> str:
        late = time.monotonic() + 60
        while "held up the event loop" not in caplog.text and time.monotonic() < late:
            time.sleep(0.1)  # noqa: ASYNC251 - that is what is tested
        return caplog.text

    told = await once(step)
    assert "shop:Shop.step (task t, sample 1) has held up the event loop for 5 s, at test_outside.py:" in told


@pytest.mark.parametrize("how", ["stops it", "a task ends the program", "a task is interrupted"])
def test_the_event_loop_goes_on(how: str) -> None:
    async def end(error: BaseException) -> None:
        raise error

    async def step() -> str:
        if how == "stops it":
            asyncio.get_running_loop().stop()
        else:
            error = SystemExit(0) if how == "a task ends the program" else KeyboardInterrupt()
            with pytest.raises((SystemExit, KeyboardInterrupt, EnvironmentFailure)):
                await asyncio.create_task(end(error))
        await asyncio.sleep(0.01)
        return "done"

    assert run_loop(once(step)) == "done"


def test_what_ends_the_run_ends_it() -> None:
    async def fails() -> None:
        raise ConfigError("x")

    async def asked() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(ConfigError, match="x"):
        run_loop(fails())
    with pytest.raises(KeyboardInterrupt):
        run_loop(asked())


def test_the_process_is_put_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def change() -> None:
        os.chdir(tmp_path)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gc.disable()
        sys.setrecursionlimit(5000)
        logging.disable(logging.CRITICAL)
        warnings.filterwarnings("error", message="velmor")

    def state() -> tuple[Any, ...]:
        return (
            *(Path.cwd(), signal.getsignal(signal.SIGTERM), gc.isenabled(), sys.getrecursionlimit()),
            *(logging.root.manager.disable, {row for row in warnings.filters if row[0] == "error"}),
        )

    async def step() -> None:
        change()

    async def run() -> None:
        before = state()
        await once(step)
        assert state() == before
        with holding("term"):
            called(change)
        assert state() == before

    run_loop(run())
    assert "shop:Shop.step (task t, sample 1) has changed the filters of warnings, the garbage collector" in caplog.text


FORKS = """
import asyncio, os, sys, time
from agentgrpo.core.errors import EnvironmentFailure
from agentgrpo.core.outside import call_once, called, forks_ended, run_loop
async def forked():
    if os.fork() == 0:
        await asyncio.sleep(0)
async def step():
    if how == "it comes back":
        os.fork()
    if how == "it awaits":
        await forked()
    if how == "a task of its own":
        await asyncio.gather(forked(), forked())
    if how == "it stays" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        time.sleep(600)
    if how == "in a thread":
        await asyncio.to_thread(called, os.fork)
how = sys.argv[1]
with forks_ended():
    run_loop(call_once(EnvironmentFailure, "step", "task", step))
    print("after the call", flush=True)
print("at the end", flush=True)
"""


@pytest.mark.parametrize("how", ["it comes back", "it awaits", "a task of its own", "it stays", "in a thread"])
def test_what_it_forks_ends(how: str) -> None:
    run = subprocess.run([sys.executable, "-c", FORKS, how], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "after the call\nat the end\n", "")
    assert [p for p in psutil.process_iter() if _is_of(p, how)] == []


def _is_of(process: psutil.Process, how: str) -> bool:
    try:
        return process.cmdline()[-2:] == [FORKS, how]
    except psutil.Error:
        return False


def test_a_program_that_was_started_goes_on() -> None:
    with forks_ended():
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert started.poll() is None
    started.kill()
    started.wait()
