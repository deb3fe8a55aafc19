"""How a run awaits: a phase, stop requests and one end for all processes, none of which can be forgotten."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

import agentgrpo
from agentgrpo.core.errors import DataError, Preempted
from agentgrpo.run.context import RunContext
from agentgrpo.training.process_group import Alone, ProcessGroup, share
from tests.training.several import on

T = TypeVar("T")
PACKAGE = Path(agentgrpo.__file__).parent
CONTEXT = "run/context.py"
ITEMS = [3, 1, 4, 1, 5]
GRACE_S = 60.0


def inside(world: ProcessGroup, work: Callable[[RunContext], Awaitable[T]]) -> T:
    """What `work` comes to in the context of a run."""

    async def run() -> T:
        with RunContext(world, "start again", grace_s=GRACE_S, at_once=lambda: None) as ctx:
            return await work(ctx)

    return asyncio.run(run())


def test_nobody_awaits_the_other_processes_but_through_the_context() -> None:
    """Whoever did by hand might forget the phase, the stop request or the agreement, and the others would wait for it
    until they count as lost."""
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"agree_on|unless_stopped", text)] == [CONTEXT]
    of_runs = {name: text for name, text in sources.items() if name.startswith(("run/", "cli/", "reports/"))}
    assert [name for name, text in of_runs.items() if ".phase = " in text] == [CONTEXT]


def test_a_phase_is_named_and_its_result_is_the_work_s_own() -> None:
    world, error = Alone(), DataError("no")

    async def phase() -> str:
        await asyncio.sleep(0)
        return world.phase

    async def fails() -> None:
        raise error

    async def work(ctx: RunContext) -> list[str]:
        found = [await ctx.do("the rollout of step 3", phase())]
        ctx.at("the update of step 3")
        found.append(world.phase)
        ctx.stop_if_asked("the start of step 4")
        found.append(world.phase)
        with pytest.raises(DataError) as caught:
            await ctx.do("the start of step 4", fails())
        assert caught.value is error
        return found

    assert inside(world, work) == ["the rollout of step 3", "the update of step 3", "the start of step 4"]


@pytest.mark.parametrize(
    ("share", "seconds", "expected"),
    [(0.0, 0.05, "stopped by SIGTERM; start again"), (0.5, 0.05, "done"), (1.0, 0.05, "done"), (0.0, 0.0, "done")],
)
def test_after_a_signal_work_may_be_done_within_its_share_of_the_time(
    share: float, seconds: float, expected: str
) -> None:
    """What needs no waiting is done in any case."""

    async def takes() -> str:
        if seconds:
            await asyncio.sleep(seconds)
        return "done"

    async def work(ctx: RunContext) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            return await ctx.do("work", takes(), share=share)
        except Preempted as e:
            return str(e)

    assert inside(Alone(), work) == expected


def test_what_is_given_up_has_ended_before_anybody_hears_of_it() -> None:
    log: list[str] = []

    async def endless() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            log.append("tidied")

    async def work(ctx: RunContext) -> None:
        with pytest.raises(Preempted, match="SIGINT"):
            await ctx.do("work", endless())
        log.append("raised")
        with pytest.raises(Preempted):
            ctx.stop_if_asked("the next phase")

    inside(Alone(), work)
    assert log == ["tidied", "raised"]


def is_signalled(world: ProcessGroup, signalled: int) -> list[str]:
    """A signal to one process, while that one works, while it computes and while it only looks."""

    async def waits() -> None:
        if world.rank == signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def work(ctx: RunContext) -> list[str]:
        found = []
        for attempt in ("work", "look"):
            try:
                if attempt == "look":
                    ctx.stop_if_asked("a look")
                else:
                    await ctx.do("work", waits())
            except Preempted as e:
                found.append(f"{attempt}: {e}")
        return found

    return inside(world, work)


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_ends_the_work_of_all(signalled: int) -> None:
    stopped = "stopped by SIGTERM; start again"
    assert on(2, is_signalled, signalled) == [[f"work: {stopped}", f"look: {stopped}"]] * 2


def raises(world: ProcessGroup) -> str:
    async def fails() -> None:
        if world.rank:
            raise DataError("on the second")

    async def work(ctx: RunContext) -> str:
        try:
            await ctx.do("work", fails())
        except DataError as e:
            return str(e)
        return "nothing"

    return inside(world, work)


@pytest.mark.slow
def test_what_one_raises_all_raise() -> None:
    assert on(2, raises) == ["on the second"] * 2


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

    async def work(ctx: RunContext) -> list[int]:
        return await ctx.do("work", asyncio.wait_for(both(), 1.0 if world.rank == limited else 30.0))

    try:
        found = inside(world, work)
    except TimeoutError:
        return "TimeoutError"
    return f"{found}, then {world.gather(world.rank)}"


@pytest.mark.parametrize(
    "slow, expected",
    [
        pytest.param("nobody", f"{ITEMS}, then [0, 1]", marks=pytest.mark.slow),
        ("first 0", "TimeoutError"),  # one is cancelled at work, or while it waits for the other's part
        pytest.param("first 1", "TimeoutError", marks=pytest.mark.slow),
        pytest.param("second 0", "TimeoutError", marks=pytest.mark.slow),
        ("second 1", "TimeoutError"),
    ],
)
@pytest.mark.parametrize("limited", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_time_limit_of_one_is_met_by_all_wherever_it_strikes(slow: str, expected: str, limited: int) -> None:
    assert on(2, times_out, slow, limited) == [expected, expected]


OVERDUE = """
import asyncio, os, signal, time
from agentgrpo.run.context import RunContext
from agentgrpo.training.process_group import Alone

async def work():
    for name in {signals}:
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)  # as an update that takes no notice

async def run():
    at_once = lambda: print("closed", flush=True)
    with RunContext(Alone(), "go on with: agentgrpo resume x", grace_s={grace_s}, at_once=at_once) as ctx:
        await ctx.do("the update", work())

asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("signals", "grace_s", "code", "why"),
    [
        (["SIGTERM"], 0.1, 75, "SIGTERM, and its work did not end within 0.1 seconds"),
        (["SIGTERM", "SIGINT"], 60.0, 130, "SIGTERM, and SIGINT came again"),
        (["SIGINT", "SIGINT"], 60.0, 130, "SIGINT, and SIGINT came again"),
    ],
)
def test_an_end_at_once_says_why_what_is_lost_and_how_to_go_on(
    signals: list[str], grace_s: float, code: int, why: str
) -> None:
    program = OVERDUE.format(signals=signals, grace_s=grace_s)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = f"agentgrpo: stopped by {why}: it ends at once, and what was not saved yet is lost; "
    assert (done.returncode, done.stdout) == (code, "closed\n")
    assert done.stderr == f"{said}go on with: agentgrpo resume x\n"
