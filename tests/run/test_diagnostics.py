"""A process that is asked what it is at answers, and goes on as if nobody had asked."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import ToolCall
from agentgrpo.run.diagnostics import Diagnostics, LoopLag
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.toolbox import Toolbox
from tests.environments.tools.scripted import Saying
from tests.tools.places import Place

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def handlers_are_restored() -> Iterator[None]:
    handlers, threads = [signal.getsignal(number) for number in SIGNALS], {*threading.enumerate()}
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    new = {thread.name for thread in threads ^ {*threading.enumerate()} if thread.is_alive()}
    assert new <= {"agentgrpo-outside"}, (
        "which watches code from outside for good; one of an earlier test may have ended"
    )


def diagnostics(
    run_dir: Path, said: list[str], *, watchdog_s: float | None = None, max_loop_lag_s: float | None = None
) -> Diagnostics:
    return Diagnostics(run_dir, watchdog_s=watchdog_s, max_loop_lag_s=max_loop_lag_s, say=said.append)


async def innermost(never: Awaitable[object]) -> None:
    await never


async def outer(never: Awaitable[object]) -> None:
    await innermost(never)


def hold_up(seconds: float) -> None:
    time.sleep(seconds)


def line_of(function: Callable[..., object]) -> int:
    """Of its first statement."""
    return function.__code__.co_firstlineno + 1


async def test_sigusr1_writes_what_every_task_waits_for(tmp_path: Path) -> None:
    said: list[str] = []
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hanging = [asyncio.create_task(outer(never), name=f"hanging-{i}") for i in (10, 9, 8)]
    others = [
        asyncio.create_task(outer(hanging[0]), name="waiting"),
        asyncio.create_task(outer(asyncio.gather(*hanging[1:])), name="gatherer"),
        asyncio.create_task(outer(never), name="new"),
    ]
    await asyncio.sleep(0)
    others.append(asyncio.create_task(outer(never), name="newest"))
    with diagnostics(tmp_path, said) as asked:
        os.kill(os.getpid(), signal.SIGUSR1)
        text = asked.path.read_text()
    assert said == [f"SIGUSR1: the tasks of the event loop are in {asked.path}"]
    assert re.search(r"^=== \d{4}-\S+, SIGUSR1, tasks: 8, places: 5$", text, re.MULTILINE)
    chain = (
        f"    tests/run/test_diagnostics.py:{line_of(outer)} outer  | await innermost(never)\n"
        f"    tests/run/test_diagnostics.py:{line_of(innermost)} innermost  | await never\n"
    )
    assert f"hanging-8, hanging-9, hanging-10, new:\n{chain}    awaits a future\n" in text
    assert f"waiting:\n{chain}    awaits hanging-10\n" in text
    assert f"gatherer:\n{chain}    awaits 2 of 2: hanging-9, hanging-8\n" in text
    assert re.search(r"^newest:\n    \S+ outer  \|.*\n    ready to run\n", text, re.MULTILINE)
    assert "test_sigusr1_writes_what_every_task_waits_for  | os.kill(os.getpid(), signal.SIGUSR1)" in text
    assert "    running now\n" in text
    never.cancel()
    await asyncio.gather(*hanging, *others, return_exceptions=True)


def test_sigusr2_writes_the_stack_of_every_thread(tmp_path: Path) -> None:
    said: list[str] = []
    over = threading.Event()
    stuck = threading.Thread(target=over.wait, name="stuck")
    stuck.start()
    with diagnostics(tmp_path, said) as asked:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR2)
        text = asked.path.read_text()
    over.set()
    stuck.join()
    assert said == [f"SIGUSR2: the stacks of all threads are in {asked.path}"] * 2
    assert text.count("SIGUSR2, threads: ") == 2
    assert text.count("thread stuck:\n") == 2
    assert text.count('threading.py", line') >= 4
    assert "test_sigusr2_writes_the_stack_of_every_thread" in text


def test_nobody_who_asks_leaves_nothing(tmp_path: Path) -> None:
    with diagnostics(tmp_path, []):
        assert list(tmp_path.iterdir()) == [], "what a SIGKILL would leave"
    assert list(tmp_path.iterdir()) == []


def test_without_an_event_loop_the_answer_is_that(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said) as asked:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert "SIGUSR1, no event loop is running" in asked.path.read_text()


def test_what_cannot_be_written_is_said_and_raises_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said) as asked:
        asked.path.parent.mkdir()
        asked.path.symlink_to("/dev/full")
        os.kill(os.getpid(), signal.SIGUSR1)
    assert said == ["SIGUSR1: the tasks cannot be written down: OSError: [Errno 28] No space left on device"]


async def test_the_watchdog_writes_both_again_and_again_and_ends_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said, watchdog_s=0.3) as asked:
        with asked.step("step 7"):
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            hanging = asyncio.create_task(outer(never), name="hanging")
            hold_up(1.05)  # the loop itself is held up
        with asked.step("step 8"):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # between the steps it sleeps
        text = asked.path.read_text()
    hanging.cancel()
    assert 2 <= len(said) <= 4
    assert all(line.startswith("note: step 7 has taken ") for line in said)
    assert said[0].endswith(f"is in {asked.path}. The run goes on")
    assert text.count("step 7 has taken") == len(said)
    assert text.count("step 7, threads: ") == len(said)
    assert text.count('test_diagnostics.py", line') >= len(said)
    assert "hanging:\n" in text
    assert "hold_up(1.05)" in text


def test_a_forked_child_has_the_former_handlers(tmp_path: Path) -> None:
    """As a subprocess: forking a process with threads is nothing for this one."""
    program = f"""
import os, signal, time
from pathlib import Path
from agentgrpo.run.diagnostics import Diagnostics
said = []
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
with Diagnostics(Path({str(tmp_path)!r}), watchdog_s=None, max_loop_lag_s=None, say=said.append) as asked:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1], seen
        os.kill(os.getpid(), signal.SIGUSR2)  # ends it, as it would any process
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR2
    assert not asked.path.exists()
    os.kill(os.getpid(), signal.SIGUSR2)
assert len(said) == 1, said
os.kill(os.getpid(), signal.SIGUSR1)
assert seen == [signal.SIGUSR1]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("keys", [{"watchdog_s": 0.0}, {"max_loop_lag_s": -1.0}])
def test_limits_are_positive(tmp_path: Path, keys: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"null .never., or more than 0 seconds is allowed"):
        diagnostics(tmp_path, [], **keys)


async def call_tool(tool: Saying, tmp_path: Path) -> None:
    box = Toolbox({"say": tool}, count_tokens=len)
    await box.call(ToolCall(name="say", arguments={"text": "x"}), Place(tmp_path), turn=0)
    await asyncio.sleep(0.1)


def blocking(text: str, workspace: Workspace) -> ToolResult:
    time.sleep(0.6)
    return ToolResult.ok(text)


async def patient(text: str, workspace: Workspace) -> ToolResult:
    await asyncio.sleep(0.6)
    return ToolResult.ok(text)


async def test_a_tool_that_holds_up_the_loop_is_named_once(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said, max_loop_lag_s=0.2) as asked:
        for _ in range(2):
            with asked.responsive("step 3"):
                await call_tool(Saying(blocking), tmp_path)
            lag = asked.lap()
    assert list(lag) == ["time/loop_lag/p50", "time/loop_lag/p99", "time/loop_lag/max"]
    assert lag["time/loop_lag/p50"] < 0.2 < 0.5 < lag["time/loop_lag/max"]
    assert len(said) == 1
    assert re.match(
        r"note: step 3: the event loop stood still for \d+\.\d s, held up by tool say at "
        r"tests/run/test_diagnostics\.py:\d+ blocking; all episodes waited\.",
        said[0],
    )
    assert asked.lap() == {}


CROWDED = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
from agentgrpo.run.diagnostics import Diagnostics

OTHER = "import time\\nwhile time.process_time() < 20: pass"

def compute(cpu_s):
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass

async def run():
    with Diagnostics(Path(sys.argv[1]), watchdog_s=None, max_loop_lag_s=0.3, say=print) as asked:
        for _ in range(2):
            with asked.responsive("step 3"):
                await asyncio.sleep(0.1)
                compute({cpu_s})
                await asyncio.sleep(0)
                await asyncio.sleep(0.1)
        print("late", asked.lap()["time/loop_lag/max"] > 0.3)

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
others = [subprocess.Popen([sys.executable, "-c", OTHER]) for _ in range(6)]
try:
    asyncio.run(run())
finally:
    for other in others:
        other.kill()
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not say who waited for it")
@pytest.mark.parametrize(("cpu_s", "is_blamed"), [(0.15, False), (0.6, True)])
def test_a_process_whose_processor_others_have_holds_up_nobody(tmp_path: Path, cpu_s: float, is_blamed: bool) -> None:
    """Six others compute on the one processor there is: whatever takes CPU seconds takes seven times as long."""
    program = CROWDED.format(cpu_s=cpu_s)
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    *notes, late = done.stdout.splitlines()
    assert (late, len(notes)) == ("late True", int(is_blamed)), done.stdout


async def test_a_tool_that_waits_holds_up_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said, max_loop_lag_s=0.4) as asked, asked.responsive("step 3"):
        await call_tool(Saying(patient), tmp_path)
    assert said == []
    assert 0 <= asked.lap()["time/loop_lag/p50"] < 0.3


async def test_an_update_is_no_lag(tmp_path: Path) -> None:
    said: list[str] = []
    with diagnostics(tmp_path, said, max_loop_lag_s=0.1) as asked:
        with asked.responsive("step 3"):
            await asyncio.sleep(0)
        hold_up(0.4)
        await asyncio.sleep(0.1)
    assert said == []
    assert asked.lap()["time/loop_lag/max"] < 0.1


async def test_the_engine_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.run.diagnostics._BLAMELESS", (str(Path(__file__).parent),))
    said: list[str] = []
    lag = LoopLag(max_s=0.05, say=said.append)
    with lag.measured("step 3"):
        await asyncio.sleep(0)
        hold_up(0.2)
        looking = threading.Thread(target=lag.look)
        looking.start()
        looking.join()
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    assert (said, lag.lap()["time/loop_lag/max"] > 0.1) == ([], True)


async def test_an_answer_to_a_signal_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> str:
        hold_up(0.4)
        return "tasks"

    monkeypatch.setattr("agentgrpo.run.diagnostics.describe_tasks", slow)
    said: list[str] = []
    with diagnostics(tmp_path, said, max_loop_lag_s=0.1) as asked, asked.responsive("step 3"):
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.1)
    assert said == [f"SIGUSR1: the tasks of the event loop are in {asked.path}"]
    assert asked.lap()["time/loop_lag/max"] > 0.3
