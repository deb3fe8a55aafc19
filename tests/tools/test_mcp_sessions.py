"""Every attempt at an episode has a session with an MCP server to itself: what it leaves there nobody else meets."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgrpo.core.errors import ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome, ToolCall
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rollout.groups import run_episode
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.mcp.server import PooledServer
from agentgrpo.tools.mcp.session import _told_keepers
from agentgrpo.tools.mcp.toolset import Mcp
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.tools.workspace import EpisodeWorkspace, Workspaces
from tests import builders
from tests.environments.scripted import tokenizer
from tests.environments.tools.scripted import Saying, answer, call, say
from tests.runners import tool_runner
from tests.thorough import siblings
from tests.tools.leftovers import alive, new_processes
from tests.tools.test_mcp import raw, wait_until
from tests.training.several import free_port

SQLITE = (sys.executable, str(Path(__file__).with_name("mcp_sqlite.py")))


@asynccontextmanager
async def made(**settings: Any) -> AsyncIterator[Mcp]:
    toolset = await asyncio.to_thread(Mcp, **settings)
    try:
        yield toolset
    finally:
        await toolset.close()


async def ask(toolset: Mcp, workspace: Workspace, **arguments: Any) -> ToolResult:
    """The server's only tool."""
    [tool] = toolset.tools
    return await tool.call(arguments, workspace)


async def pid_of(toolset: Mcp, workspace: Workspace) -> int:
    return int((await ask(toolset, workspace)).text)


def servers(how: str) -> list[int]:
    """Processes of a raw server of this kind, without their guards."""
    found = []
    for process in new_processes():
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            found += [process.pid] if how in words and "-I" not in words else []
    return found


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path)


def opened(workspaces: Workspaces, seed: str, attempt: int = 0) -> EpisodeWorkspace:
    return workspaces.open(builders.task(), seed=seed, attempt=attempt)


# --- what one episode leaves there


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    with subprocess.Popen([*SQLITE, "--http", str(port)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has written is read from /proc")
@pytest.mark.parametrize(("file", "warnings"), [("{home}/notes.db", 1), (":memory:", 0), ("{session}/notes.db", 0)])
async def test_a_server_that_keeps_files_for_all_episodes_is_told_once(
    file: str, warnings: int, workspaces: Workspaces, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = (*SQLITE, file.replace("{home}", str(tmp_path)))
    _told_keepers.clear()
    async with made(command=command) as toolset, opened(workspaces, "train/0|t|0") as a:
        for statement in (CREATE, INSERT.format("x"), INSERT.format("y")):
            assert await ask(toolset, a, sql=statement) == ToolResult.ok("[]")
    told = [message for message in caplog.messages if "other episodes may find" in message]
    assert len(told) == warnings
    assert all("has written a file during a call of execute" in message for message in told)
    assert all("Put {session}" in message for message in told)


CREATE, INSERT, SELECT = "create table notes (text)", "insert into notes values ('{}')", "select text from notes"


@pytest.mark.parametrize("way", [":memory:", pytest.param("{session}/notes.db", marks=pytest.mark.slow), "url"])
async def test_every_episode_has_a_table_of_its_own(way: str, workspaces: Workspaces, url: str) -> None:
    settings: Mapping[str, Any] = {"url": url} if way == "url" else {"command": (*SQLITE, way)}
    async with (
        made(**settings) as toolset,
        opened(workspaces, "train/0|t|0") as a,
        opened(workspaces, "train/0|t|1") as b,
    ):
        for statement in (CREATE, INSERT):
            told = await asyncio.gather(*(ask(toolset, one, sql=statement.format(one.key)) for one in (a, b)))
            assert told == [ToolResult.ok("[]")] * 2
        for one in (a, b):
            assert await ask(toolset, one, sql=SELECT) == ToolResult.ok(f"[('{one.key}',)]")


@pytest.mark.slow
async def test_a_shared_session_shares_its_tables(workspaces: Workspaces) -> None:
    async with (
        made(command=(*SQLITE, ":memory:"), shared=True) as toolset,
        opened(workspaces, "a") as a,
        opened(workspaces, "b") as b,
    ):
        assert await ask(toolset, a, sql=CREATE) == ToolResult.ok("[]")
        assert (await ask(toolset, b, sql=CREATE)).outcome is Outcome.RUNTIME_ERROR
        for one in (a, b):
            assert await ask(toolset, one, sql=INSERT.format(one.key)) == ToolResult.ok("[]")
        assert await ask(toolset, a, sql=SELECT) == ToolResult.ok("[('a|0',), ('b|0',)]")


@pytest.mark.slow
async def test_a_retry_finds_nothing_of_the_attempt_that_failed(tmp_path: Path) -> None:
    """The policy makes a table, then a service fails for good; the second attempt at the episode makes it again."""
    turns = [call("execute", f'{{"sql": "{CREATE}"}}') + "\nObservation:", say("x"), answer("done")]

    def script(key: SeedKey, context: str) -> str:
        return turns[key.turn]

    keys = []

    def fails_once(text: str, workspace: Workspace) -> ToolResult:
        keys.append((workspace.seed, workspace.key))
        if len(keys) == 1:
            raise ToolError("the service is down", kind="http_500")
        return ToolResult.ok(text)

    renderer = ReactRenderer(tokenizer=tokenizer())
    async with made(command=(*SQLITE, ":memory:")) as toolset:
        runner = tool_runner(
            engine=ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=script),
            renderer=renderer,
            tools={"execute": toolset.tools[0], "say": Saying(fails_once)},
            workspaces=Workspaces(tmp_path),
            tool_retries=0,
        )
        sampling = SamplingParams(max_tokens=200)
        episode = await run_episode(
            runner, builders.task(), sample_index=0, stream="train/0", sampling=sampling, retries=1
        )
    seed = f"train/0|{builders.task().id}|0"
    assert (episode.failure, keys) == (None, [(seed, f"{seed}|0"), (seed, f"{seed}|1")])
    assert [(r.name, r.outcome) for r in episode.tool_records] == [
        ("execute", Outcome.SUCCESS),
        ("say", Outcome.SUCCESS),
    ]


# --- who has which session, and for how long


def are_ready(toolset: Mcp, count: int) -> bool:
    """Whether so many wait to be lent: a process that has only begun is not there yet, and another may overtake it."""
    server = toolset._server
    assert isinstance(server, PooledServer)
    return len(servers("answers")) == len(server._idle) == count


async def test_no_session_is_used_twice_and_the_next_one_is_ready(workspaces: Workspaces) -> None:
    async with made(command=raw("answers")) as toolset:
        pids = []
        for i in range(4):
            assert await asyncio.to_thread(wait_until, lambda: are_ready(toolset, 1))
            [ready] = servers("answers")
            async with opened(workspaces, str(i)) as workspace:
                pids.append(await pid_of(toolset, workspace))
                assert await pid_of(toolset, workspace) == pids[-1], "the same within an episode"
            assert pids[-1] == ready, "it had started before it was asked for"
            assert not alive(ready), "and it is closed with the episode"
        assert len(set(pids)) == 4


@pytest.mark.slow
async def test_as_many_are_kept_ready_as_were_used_at_once(workspaces: Workspaces) -> None:
    async with made(command=raw("answers")) as toolset:

        async def episode(i: int) -> int:
            async with opened(workspaces, str(i)) as workspace:
                pid = await pid_of(toolset, workspace)
                await all_there.wait()
                return pid

        all_there = asyncio.Barrier(5)
        first = await asyncio.gather(*map(episode, range(5)))
        assert await asyncio.to_thread(wait_until, lambda: are_ready(toolset, 5))
        ready = servers("answers")
        assert len(set(first)) == 5
        assert not set(first) & set(ready)
        second = await asyncio.gather(*map(episode, range(5)))
        assert sorted(second) == sorted(ready)


async def test_no_more_than_max_sessions_at_once(workspaces: Workspaces) -> None:
    counts: list[int] = []
    two = asyncio.Barrier(2)
    async with made(command=raw("answers"), max_sessions=2) as toolset:

        async def episode(i: int) -> int:
            async with opened(workspaces, str(i)) as workspace:
                pid = await pid_of(toolset, workspace)
                counts.append(len(servers("answers")))
                await two.wait()
                return pid

        async with asyncio.timeout(60):
            pids = await asyncio.gather(*map(episode, range(8)))
    assert (len(set(pids)), max(counts)) == (8, 2)


async def test_two_servers_never_wait_for_each_other(workspaces: Workspaces) -> None:
    """Each has one session; two episodes take the two in opposite orders."""
    async with (
        made(command=raw("answers"), max_sessions=1) as one,
        made(command=raw("answers"), max_sessions=1) as other,
    ):
        holding = asyncio.Barrier(2)

        async def episode(seed: str, first: Mcp, second: Mcp) -> set[int]:
            async with opened(workspaces, seed) as workspace:
                pid = await pid_of(first, workspace)
                await holding.wait()
                return {pid, await pid_of(second, workspace)}

        async with asyncio.timeout(20):
            found = await asyncio.gather(episode("a", one, other), episode("b", other, one))
    assert [len(pids) for pids in found] == [2, 2], "a process of each server answered each"


async def test_waiting_for_a_session_takes_nothing_of_a_call_s_time(workspaces: Workspaces) -> None:
    """Neither of its deadline nor of the slots that the calls of those who have a session need."""
    timeout_s = 2.0
    others = [asyncio.Event() for _ in range(2)]
    async with made(command=raw("answers"), max_sessions=1) as toolset:
        box = Toolbox({"act": toolset.tools[0]}, count_tokens=len, timeout_s=timeout_s, retries=0, max_concurrent=1)

        async def episode(i: int) -> list[Outcome]:
            async with opened(workspaces, str(i)) as workspace:
                _, first = await box.call(ToolCall(name="act", arguments={}), workspace, turn=0)
                if not others[i].is_set():
                    others[1 - i].set()
                    await asyncio.sleep(1.25 * timeout_s)
                _, second = await box.call(ToolCall(name="act", arguments={}), workspace, turn=1)
                return [first.outcome, second.outcome]

        assert await asyncio.gather(episode(0), episode(1)) == [[Outcome.SUCCESS] * 2] * 2


# --- what ends before its time


async def test_a_session_that_dies_is_not_replaced_within_its_episode(workspaces: Workspaces) -> None:
    async with made(command=raw("answers")) as toolset:
        async with opened(workspaces, "a") as workspace:
            pid = await pid_of(toolset, workspace)
            with pytest.raises(ToolError, match="it failed during a call of act") as e:
                await ask(toolset, workspace, how="ends")
            assert e.value.kind == "transport"
            for _ in range(2):
                with pytest.raises(ToolError) as e:
                    await ask(toolset, workspace)
                assert str(e.value).partition(": ")[2] == (
                    "the session is over, and its state lost: it ended with exit code 3: the disk is full"
                )
        async with opened(workspaces, "a", attempt=1) as workspace:
            assert await pid_of(toolset, workspace) != pid


async def test_a_spare_that_dies_is_given_to_nobody(workspaces: Workspaces) -> None:
    async with made(command=raw("answers")) as toolset:
        [spare] = servers("answers")
        os.kill(spare, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until, lambda: new_processes() == [])
        await asyncio.sleep(0.3)
        async with opened(workspaces, "a") as workspace:
            assert await pid_of(toolset, workspace) != spare


ENDS = ["fails", "is cancelled while it opens", "is cancelled", "is cancelled in a call"]


@pytest.mark.parametrize("end", siblings(ENDS, quick=2))
async def test_closed_however_the_episode_ends(end: str, workspaces: Workspaces) -> None:
    pids: list[int] = []
    started = asyncio.Event()
    async with made(command=raw("answers"), max_sessions=2) as toolset:

        async def episode() -> None:
            async with opened(workspaces, "a") as workspace:
                if end != "is cancelled while it opens":
                    pids.append(await pid_of(toolset, workspace))
                started.set()
                if end == "fails":
                    raise KeyError(end)
                await (ask(toolset, workspace, how="hangs") if end != "is cancelled" else asyncio.Event().wait())

        task = asyncio.create_task(episode())
        await started.wait()
        await asyncio.sleep(0 if end == "is cancelled while it opens" else 0.1)
        task.cancel()
        await asyncio.wait({task})
        assert [alive(pid) for pid in pids] == [False] * len(pids)
        async with opened(workspaces, "b") as b, opened(workspaces, "c") as c:  # nor is its place taken
            assert len({await pid_of(toolset, b), await pid_of(toolset, c)}) == 2
    assert new_processes() == []


async def test_all_are_closed_at_the_end_of_the_run(workspaces: Workspaces) -> None:
    toolset = await asyncio.to_thread(Mcp, command=raw("answers"))
    workspace = opened(workspaces, "a")
    waits = asyncio.create_task(ask(toolset, workspace, how="hangs and lists"))
    assert await asyncio.to_thread(wait_until, lambda: len(servers("answers")) == 2)
    await toolset.close()
    assert new_processes() == []
    assert [thread for thread in threading.enumerate() if thread.name == "mcp"] == []
    with pytest.raises(ToolError, match=r"MCP server .*: (closed|it failed)"):
        await waits
    async with workspace:
        with pytest.raises(ToolError, match="closed"):
            await ask(toolset, workspace)
    async with opened(workspaces, "b") as later:
        with pytest.raises(ToolError, match="closed"):
            await ask(toolset, later)


def test_one_pool_serves_consecutive_loops(workspaces: Workspaces) -> None:
    toolset = Mcp(command=raw("answers"))

    async def episode(seed: str) -> int:
        async with opened(workspaces, seed) as workspace:
            return await pid_of(toolset, workspace)

    pids = [asyncio.run(episode(str(i))) for i in range(3)]
    assert len(set(pids)) == 3
    asyncio.run(toolset.close())
    assert [alive(pid) for pid in pids] == [False] * 3


async def test_starts_that_fail_are_bounded(workspaces: Workspaces, tmp_path: Path) -> None:
    """The first one lives; whoever is next finds a server that ends at once."""
    marker = tmp_path / "started"
    once = f"""
import sys
from pathlib import Path
marker = Path({str(marker)!r})
if marker.exists():
    sys.exit("the licence is used")
marker.touch()
sys.argv = ["", "answers"]
exec(Path({raw("")[2]!r}).read_text())
"""
    program = (sys.executable, "-S", "-c", once)
    async with made(command=program, max_restarts=1, max_sessions=2) as toolset, opened(workspaces, "a") as a:
        assert (await ask(toolset, a)).outcome is Outcome.SUCCESS
        for seed in ("b", "c"):
            async with opened(workspaces, seed) as workspace:
                with pytest.raises(ToolError, match=r"gone for good after 1 restarts in a row: .* the licence is used"):
                    await ask(toolset, workspace)
        assert (await ask(toolset, a)).outcome is Outcome.SUCCESS, "who has one keeps it"


async def test_a_new_session_whose_tools_are_others_is_not_called(workspaces: Workspaces, tmp_path: Path) -> None:
    marker = tmp_path / "started"
    async with made(command=(*raw("answers"), str(marker))) as toolset:
        async with opened(workspaces, "a") as workspace:
            assert (await ask(toolset, workspace)).outcome is Outcome.SUCCESS
        marker.touch()
        async with opened(workspaces, "b") as b, opened(workspaces, "c") as c:
            changed = []
            for workspace in (b, c):  # the spare of the first one may be older than the change
                try:
                    await ask(toolset, workspace)
                except ToolError as e:
                    changed.append((e.kind, "the tool act has changed or is gone" in str(e)))
        assert changed[-1] == ("changed", True)


# --- what any tool may keep


class Counter:
    """A tool of a user's that counts its calls within an episode."""

    spec = ToolSpec(name="count", description="Counts.", parameters={"type": "object", "properties": {}})

    def __init__(self) -> None:
        self.log: list[str] = []

    @asynccontextmanager
    async def _new(self, name: str) -> AsyncIterator[list[int]]:
        self.log.append(f"open {name}")
        try:
            yield []
        finally:
            self.log.append(f"close {name}")

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        calls = await workspace.resource(self, lambda: self._new(workspace.key))
        calls.append(1)
        return ToolResult.ok(str(len(calls)))

    async def close(self) -> None: ...


async def test_what_a_tool_keeps_for_an_episode(workspaces: Workspaces) -> None:
    counter = Counter()
    async with opened(workspaces, "a") as a:
        assert not a.keeps_any
        told = await asyncio.gather(*(counter.call({}, a) for _ in range(3)))
        assert sorted(t.text for t in told) == ["1", "2", "3"], "opened once, also where several ask for it"
        assert a.keeps_any
        async with opened(workspaces, "a", attempt=1) as again:
            assert (await counter.call({}, again)).text == "1"
        assert counter.log == ["open a|0", "open a|1", "close a|1"]
    assert counter.log[3:] == ["close a|0"]
    with pytest.raises(ToolError, match=r"episode a\|0 is over"):
        await counter.call({}, a)


async def test_what_cannot_be_opened_is_tried_anew(workspaces: Workspaces) -> None:
    attempts = 0

    @asynccontextmanager
    async def opens_late() -> AsyncIterator[int]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ToolError("not yet")
        yield attempts

    async with opened(workspaces, "a") as workspace:
        with pytest.raises(ToolError, match="not yet"):
            await workspace.resource("owner", opens_late)
        assert [await workspace.resource("owner", opens_late) for _ in range(2)] == [2, 2]


async def test_a_cancelled_call_does_not_harm_what_it_opened(workspaces: Workspaces) -> None:
    events = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[str]:
        async with asyncio.timeout(60):  # has to be left by the task that entered it
            await asyncio.sleep(0.05)
            try:
                yield "value"
            finally:
                events.append((workspace.path / "log").exists())

    async with opened(workspaces, "a") as workspace:
        (workspace.path / "log").touch()
        first = asyncio.create_task(workspace.resource("owner", slow))
        await asyncio.sleep(0.01)
        first.cancel()
        assert await workspace.resource("owner", slow) == "value"
        assert first.cancelled()
    assert events == [True], "closed before the directory is removed"


async def test_what_does_not_close_well_is_told_and_no_more(
    workspaces: Workspaces, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def breaks() -> AsyncIterator[None]:
        yield
        raise OSError("the disk is full")

    async with opened(workspaces, "a") as workspace:
        await workspace.resource(Counter(), breaks)
        path = workspace.path
    assert "what Counter keeps was not closed well: OSError: the disk is full" in caplog.text
    assert not path.exists()
