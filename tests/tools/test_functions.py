"""Users' functions in processes of their own: killed in time, and nobody left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgrpo.core.concurrency import on_idle_loop
from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.services import worker
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.functions import FunctionTool
from tests.thorough import late, siblings
from tests.tools import samples
from tests.tools.leftovers import alive, new_processes
from tests.tools.places import Place

PLACE = Place(Path("/nowhere"))


@asynccontextmanager
async def opened(function: Callable[..., Any], **keys: Any) -> AsyncIterator[FunctionTool]:
    tool = FunctionTool(function, **keys)
    try:
        yield tool
    finally:
        await tool.close()


async def texts(tool: FunctionTool, *arguments: dict[str, Any]) -> list[str]:
    results = [await tool.call(a, PLACE) for a in arguments]
    assert [ToolResult.ok(r.text) for r in results] == results
    return [r.text for r in results]


def marked(mark: str) -> list[int]:
    """Processes with `mark` on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            found += [process.pid] if mark in process.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    late = time.monotonic() + seconds
    while not condition() and time.monotonic() < late:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return condition()


async def test_results_by_the_content_rule() -> None:
    async with opened(samples.weather) as tool:
        assert await texts(tool, {"city": "Bern"}, {"city": "\u00e9\n", "days": 2, "notes": ["a"], "exact": True}) == [
            "Bern 1 c None None False ()",
            "\u00e9\n 2 c None ['a'] True ()",
        ]
    async with opened(samples.say, max_result_chars=20) as tool:
        ways = ("text", "none", "number", "long", "half", "list", "parts")
        told = ["caf\u00e9", "", "1.5", "x" * 20, "a?", "[1]", "one two"]
        assert await texts(tool, *({"what": w} for w in ways)) == told
        with pytest.raises(
            ToolError, match=r"^tool say: what it returns has a part of type image; a policy reads text"
        ):
            await tool.call({"what": "picture"}, PLACE)


async def test_a_function_gets_the_variables_that_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEATHER_KEY", "k-7h3x9q2z")
    monkeypatch.setenv("OTHER_KEY", "o-7h3x9q2z")
    async with opened(samples.variable, env=("WEATHER_KEY",)) as tool:
        assert await texts(tool, {"name": "WEATHER_KEY"}, {"name": "PATH"}) == ["$WEATHER_KEY", os.environ["PATH"]]
        for _ in range(2):
            assert (await tool.call({"name": "OTHER_KEY"}, PLACE)).text == "error: KeyError: 'OTHER_KEY'"
    [warning] = caplog.messages
    assert warning.endswith("is not given to it: name it, as in tools.variable.env=[OTHER_KEY] (said once)")
    with pytest.raises(ConfigError, match=r"^env: the environment variable NO_SUCH_KEY is not set"):
        FunctionTool(samples.variable, env=("NO_SUCH_KEY",))


async def test_an_object_without_a_text_is_an_error_of_the_tool() -> None:
    """Its address would be told as a success, another one in each run."""
    async with opened(samples.thing, processes=1) as tool:
        told = "error: TypeError: the tool returned a {}; a text, or a number, list or mapping of such, is needed"
        for how, name in (("bare", "Thing"), ("inside", "list")):
            result = await tool.call({"how": how}, PLACE)
            assert (result.outcome.value, result.text) == ("runtime_error", told.format(name))
        assert await texts(tool, {"how": "text"}, {"how": "set"}) == ["<lambda at 0x7f>", "{1}"]


async def test_what_it_prints_disturbs_nobody() -> None:
    async with opened(samples.noisy) as tool:
        assert await texts(tool, {}, {}) == ["", ""]


async def test_an_async_function() -> None:
    async with opened(samples.later) as tool:
        assert await texts(tool, {"seconds": 0.01}, {"seconds": 0.0}) == ["done", "done"]


async def test_exceptions_are_told_by_their_last_line() -> None:
    async with opened(samples.fail, processes=1) as tool:
        ways = ("raise", "exit", "interrupt", "recurse", "bad text")
        results = {how: await tool.call({"how": how}, PLACE) for how in ways}
        assert {how: r.text for how, r in results.items()} == {
            "raise": "error: " + ("ValueError: no such city " + "x" * 1000)[:500],
            "exit": "error: SystemExit: 2",
            "interrupt": "error: KeyboardInterrupt",
            "recurse": "error: RecursionError: maximum recursion depth exceeded",
            "bad text": "error: RuntimeError: no words",
        }
        assert {r.outcome.value for r in results.values()} == {"runtime_error"}
        assert 'raise ValueError("no such\\ncity " + "x" * 1000)' in results["raise"].detail


async def test_a_crash_is_the_tools() -> None:
    async with opened(samples.fail, processes=1) as tool:
        assert [await tool.call({"how": how}, PLACE) for how in ("crash", "end")] == [
            ToolResult.failed("the tool crashed (SIGSEGV)"),
            ToolResult.failed("the tool ended its process (exit code 3)"),
        ]
        assert (await tool.call({"how": "exit"}, PLACE)).text == "error: SystemExit: 2"


KILLED = ToolResult.failed("the process of the tool was killed; it may need more memory than there is")


async def test_a_call_that_has_its_process_killed_is_at_fault_itself(tmp_path: Path) -> None:
    """Else a policy could void a bad episode by the arguments that it chooses. A second attempt tells."""
    async with opened(samples.fall) as tool:
        for n, (how, result) in enumerate(
            (("killed", KILLED), ("keeper killed", KILLED), ("killed once", ToolResult.ok("2")))
        ):
            place = Place(tmp_path / str(n))
            place.path.mkdir()
            assert await tool.call({"how": how}, place) == result
            assert (place.path / "attempts").read_text() == "xx"


@pytest.mark.parametrize("which", ["keeper", "worker"])
async def test_a_kill_from_outside_is_nobodys_fault(which: str, tmp_path: Path) -> None:
    async with opened(samples.fall, processes=1) as tool:
        call = asyncio.create_task(tool.call({"how": "by others"}, Place(tmp_path)))
        assert await until((tmp_path / "attempts").exists), "under way"
        [keeper] = [p for p in new_processes() if p.ppid() == os.getpid()]
        [worker] = keeper.children()
        (keeper if which == "keeper" else worker).kill()
        assert await call == ToolResult.ok("2")
        assert [alive(process.pid) for process in (keeper, worker)] == [False, False]


async def test_a_process_that_ends_while_it_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(samples.who, "__module__", "ending")
    async with opened(samples.who) as tool:
        with pytest.raises(ToolError, match="its process ended while it was imported: the process of the tool was"):
            await tool.call({}, PLACE)


async def test_memory_has_an_end() -> None:
    async with opened(samples.eat, processes=1, memory_mb=128) as tool:
        eaten = await tool.call({"megabytes": 500}, PLACE)
        assert (eaten.outcome.value, eaten.text) == ("runtime_error", "error: MemoryError")
        assert await texts(tool, {"megabytes": 10}) == ["10"]


async def test_a_call_is_not_short_of_memory_because_of_those_before_it() -> None:
    async with opened(samples.eat, processes=1, memory_mb=128) as tool:
        assert await texts(tool, *[{"megabytes": 40}] * 6) == ["40"] * 6
    async with opened(samples.eat, processes=2, memory_mb=128) as tool:
        both = await asyncio.gather(*(tool.call({"megabytes": 90}, PLACE) for _ in range(2)))
        assert [*both, await tool.call({"megabytes": 60}, PLACE)] == [ToolResult.ok(n) for n in ("90", "90", "60")]


async def test_the_workspace_is_passed(tmp_path: Path) -> None:
    async with opened(samples.count) as tool:
        assert tool.exclusive
        assert [await tool.call({"name": n}, Place(tmp_path)) for n in "ab"] == [
            ToolResult.ok("['a']"),
            ToolResult.ok("['a', 'b']"),
        ]
    async with opened(samples.draw) as tool:
        assert not tool.exclusive


async def test_draws_depend_on_the_episode_and_not_on_the_process() -> None:
    episodes = [Place(Path("/nowhere"), seed=seed) for seed in ("a", "b", "a")]
    async with opened(samples.draw, processes=1) as tool:
        first = [(await tool.call({}, e)).text for e in episodes]
    async with opened(samples.draw, processes=1, recycle_after=1) as tool:
        fresh = [(await tool.call({}, e)).text for e in episodes]
    assert first == fresh
    assert first[0] == first[2] != first[1]


@pytest.mark.parametrize("seed", [None, "random"])
async def test_sets_have_one_order_in_all_processes(seed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    async with opened(samples.disorder, recycle_after=1) as tool:
        assert len(set(await texts(tool, *[{}] * 4))) == 1


async def test_processes_are_kept_and_recycled() -> None:
    async with opened(samples.who, processes=1, recycle_after=3) as tool:
        said = [(await tool.call({}, PLACE)).text.split() for _ in range(7)]
        assert [calls for _, calls in said] == ["1", "2", "3", "1", "2", "3", "1"]
        assert len({pid for pid, _ in said}) == 3
    assert not any(psutil.pid_exists(int(pid)) for pid, _ in said)


async def test_at_most_so_many_at_a_time() -> None:
    async with opened(samples.who, processes=2) as tool:
        said = await asyncio.gather(*(tool.call({"seconds": 0.2}, PLACE) for _ in range(6)))
        counts = Counter(pid for pid, _ in (r.text.split() for r in said))
        assert len(counts) == 2
        assert sorted(int(r.text.split()[1]) for r in said) == sorted(i + 1 for n in counts.values() for i in range(n))


def test_processes_outlive_the_event_loop() -> None:
    tool = FunctionTool(samples.who, processes=1)
    said = [asyncio.run(tool.call({}, PLACE)).text.split() for _ in range(3)]
    assert ([calls for _, calls in said], len({pid for pid, _ in said})) == (["1", "2", "3"], 1)
    asyncio.run(tool.close())
    assert not psutil.pid_exists(int(said[0][0]))


async def test_a_process_that_died_meanwhile_is_replaced() -> None:
    async with opened(samples.who, processes=1) as tool:
        pid = int((await tool.call({}, PLACE)).text.split()[0])
        os.kill(pid, signal.SIGKILL)
        assert await until(lambda: not any(alive(process.pid) for process in new_processes())), "not yet known"
        again, calls = (await tool.call({}, PLACE)).text.split()
        assert (int(again) != pid, calls) == (True, "1")


@pytest.mark.clock
async def test_a_cancelled_call_leaves_nothing() -> None:
    mark = uuid.uuid4().hex
    await on_idle_loop(asyncio.sleep(0))  # its thread is the process's, and stays
    before = threading.active_count(), descriptors()
    async with opened(samples.hang_with_daemon) as tool:
        calls = [asyncio.create_task(tool.call({"mark": mark}, PLACE)) for _ in range(2)]
        assert await until(lambda: len(marked(mark)) == 6), "the daemons did not start"
        began = time.monotonic()
        for call in calls:
            call.cancel()
        assert [type(r) for r in await asyncio.gather(*calls, return_exceptions=True)] == [asyncio.CancelledError] * 2
        assert not late(began, 0.5)
        assert marked(mark) == []
        assert new_processes() == []
    assert (threading.active_count(), descriptors()) == before


async def test_a_call_cancelled_twice_leaves_nothing() -> None:
    mark = uuid.uuid4().hex
    async with opened(samples.hang_with_daemon) as tool:
        call = asyncio.create_task(tool.call({"mark": mark}, PLACE))
        assert await until(lambda: len(marked(mark)) == 3)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await until(lambda: marked(mark) == [] and new_processes() == [])


async def test_a_thread_left_behind_ends_with_its_process() -> None:
    async with opened(samples.thread_left, processes=1, recycle_after=1) as tool:
        assert await texts(tool, {}, {}) == ["left", "left"]
        assert new_processes() == []


TRAINER = """
import asyncio, signal, sys
from pathlib import Path
from agentgrpo.tools.functions import FunctionTool
from tests.tools import samples
from tests.tools.places import Place
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
asyncio.run(FunctionTool(samples.hang_with_daemon).call({"mark": sys.argv[1]}, Place(Path("/nowhere"))))
"""


def start_trainer(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TRAINER, mark], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("how", siblings([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], quick=1))
async def test_nothing_outlives_the_trainer(how: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    trainer = start_trainer(mark)
    assert await until(lambda: len(marked(mark)) == 4), "the trainer and three daemons"
    family = [p.pid for p in psutil.Process(trainer.pid).children(recursive=True)]
    assert len(family) >= 2, "keeper and worker"
    trainer.send_signal(how)
    try:
        trainer.wait(60)
    finally:
        trainer.kill()
    assert await until(lambda: not any(psutil.pid_exists(pid) for pid in [*family, *marked(mark)]))


async def test_a_module_that_cannot_be_imported_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples.who, "__module__", "tests.tools.nowhere")
    async with opened(samples.who) as tool:
        with pytest.raises(ToolError, match="cannot be imported in its process: ModuleNotFoundError: No module named"):
            await tool.call({}, PLACE)
    assert new_processes() == []


def test_what_is_no_tool() -> None:
    def local() -> None:
        """A."""

    for function, why in (
        (local, "define it at the top of a module"),
        (lambda: None, "define it at the top of a module"),
        (samples.Unspeakable(), "a function or a class is needed"),
        (samples.starred, "cannot be passed by name"),
    ):
        with pytest.raises(ConfigError, match=why):
            FunctionTool(function)  # type: ignore[arg-type]
    for keys in ({"processes": 0}, {"recycle_after": 0}, {"max_result_chars": 0}):
        with pytest.raises(ConfigError, match="1 or more are allowed"):
            FunctionTool(samples.who, **keys)
    with pytest.raises(ConfigError, match="memory_mb=1; 64 or more is allowed"):
        FunctionTool(samples.who, memory_mb=1)


def test_a_process_starts_without_what_most_functions_do_not_need() -> None:
    """A second of CPU for every twenty processes, else."""
    code = f"import runpy, sys; runpy.run_path({worker.__file__!r}); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
