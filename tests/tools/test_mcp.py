"""Tools of MCP servers: one made with the SDK, over pipes and over HTTP, and one that does everything wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome
from agentgrpo.tools.base import Tool, ToolResult, Toolset
from agentgrpo.tools.mcp.toolset import Mcp, _found
from tests.thorough import late, siblings
from tests.tools.leftovers import alive

HERE = Path(__file__).parent
SMALL = (sys.executable, str(HERE / "mcp_server.py"))
NOWHERE: Any = None
"""The workspace: a server knows nothing of episodes."""


def raw(how: str) -> tuple[str, ...]:
    return (sys.executable, "-S", str(HERE / "mcp_raw.py"), how)


def caller(toolset: Mcp) -> Callable[..., Any]:
    tools = {tool.spec.name: tool for tool in toolset.tools}

    async def call(name: str, /, **arguments: Any) -> ToolResult:
        return await tools[name].call(arguments, NOWHERE)

    return call


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[Callable[..., Any]]:
    """`await call(tool, **arguments)` gives a ToolResult. Of one session that all share; those of an episode's own are
    in test_mcp_sessions.py."""
    toolset = await asyncio.to_thread(Mcp, **{"shared": True, **settings})
    try:
        yield caller(toolset)
    finally:
        await toolset.close()


def test_a_program_beside_this_interpreter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that was not activated is not on PATH."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name in ("agentgrpo-time-server", "sh"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "no-program").touch(mode=0o644)
    given = ["agentgrpo-time-server", "sh", "no-program", "nowhere"]
    assert [_found(name) for name in given] == [str(tmp_path / given[0]), *given[1:]]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- what a good server brings


@pytest.fixture(scope="module")
def small() -> Iterator[Mcp]:
    toolset = Mcp(command=SMALL, shared=True, timeout_s=3.0, deny=("shout",), prefix="small.")
    yield toolset
    asyncio.run(toolset.close())


@pytest.fixture
def ask(small: Mcp) -> Callable[..., Any]:
    return caller(small)


def test_the_tools_of_a_server(small: Mcp) -> None:
    assert isinstance(small, Toolset)
    assert isinstance(small.tools[0], Tool)
    assert [tool.spec.name for tool in small.tools] == [f"small_{n}" for n in ("add", "cancelled", "fail", "wait")]
    integer = {"type": "integer"}
    assert small.tools[0].spec == ToolSpec(
        name="small_add",
        description="Adds two whole numbers.",
        parameters={
            "type": "object",
            "title": "addArguments",
            "properties": {"a": {"title": "A", **integer}, "b": {"title": "B", **integer}},
            "required": ["a", "b"],
        },
    )


async def test_many_calls_side_by_side(ask: Callable[..., Any]) -> None:
    results = await asyncio.gather(*(ask("small_add", a=i, b=i) for i in range(50)), ask("small_wait", seconds=0.01))
    assert results == [ToolResult.ok(str(2 * i)) for i in range(50)] + [ToolResult.ok("done")]


async def test_errors_of_a_tool_are_results(ask: Callable[..., Any]) -> None:
    failed = await ask("small_fail", why="because")
    assert failed.outcome is Outcome.RUNTIME_ERROR
    assert failed.text.startswith("error: Error executing tool fail")
    assert await ask("small_add", a=1, b=1) == ToolResult.ok("2")


@pytest.mark.clock
async def test_a_call_that_takes_too_long_is_a_timeout_and_others_are_not_held_up(ask: Callable[..., Any]) -> None:
    before = int((await ask("small_cancelled")).text)
    slow = asyncio.create_task(ask("small_wait", seconds=600))
    start = time.monotonic()
    for _ in range(20):
        assert (await ask("small_add", a=1, b=1)).text == "2"
    assert not late(start, 2.5)
    assert await slow == ToolResult(outcome=Outcome.TIMEOUT, text="error: not done within 3 s")
    assert not late(start, 4)
    assert int((await ask("small_cancelled")).text) == before + 1  # the server was told to stop


@pytest.mark.clock
async def test_a_cancelled_call_ends_at_once_and_at_the_server_too(ask: Callable[..., Any]) -> None:
    before = int((await ask("small_cancelled")).text)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ask("small_wait", seconds=600)
    assert not late(start, 1.2)
    assert int((await ask("small_cancelled")).text) == before + 1


def test_one_connection_serves_consecutive_loops() -> None:
    toolset = Mcp(command=raw("answers"), shared=True)
    [tool] = toolset.tools
    pids = {asyncio.run(tool.call({}, NOWHERE)).text for _ in range(3)}
    assert len(pids) == 1
    asyncio.run(toolset.close())
    assert not alive(int(pids.pop()))
    with pytest.raises(ToolError, match=r"MCP server .*: closed") as e:
        asyncio.run(tool.call({}, NOWHERE))
    assert e.value.kind == "closed"
    asyncio.run(toolset.close())  # once more does no harm


@pytest.mark.parametrize(
    "how, result",
    [
        ("refuses", ToolResult.refused("no such thing")),
        ("has an internal error", ToolResult.failed("it broke")),
        ("sends other content", ToolResult.ok("a\n[image/png]\nb\n[binary data]\n[file:///c]")),
    ],
)
async def test_other_answers_are_results_too(how: str, result: ToolResult) -> None:
    async with connected(command=raw(how)) as call:
        assert await call("act") == result
        assert await call("act") == result


async def test_a_server_that_prints_a_greeting_is_understood(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(command=raw("is chatty")) as call:
        assert (await call("act")).outcome is Outcome.SUCCESS
    assert "printed what is no message: 'Welcome to the server" in caplog.text


async def test_names_become_names_that_a_policy_can_write() -> None:
    async with connected(command=raw("has strange names")) as call:
        assert (await call("files_read_all_at_once")).outcome is Outcome.SUCCESS
        assert (await call("x" * 64)).outcome is Outcome.SUCCESS


async def test_a_server_that_lists_in_any_order_brings_the_same() -> None:
    toolset = await asyncio.to_thread(Mcp, command=raw("lists backwards"))
    assert [tool.spec.name for tool in toolset.tools] == ["act", "play", "sing"]
    await toolset.close()


@pytest.mark.clock
async def test_half_a_surrogate_pair_reaches_no_server() -> None:
    async with connected(command=raw("answers"), timeout_s=5.0) as call:
        start = time.monotonic()
        for arguments in ({"how": "\ud800"}, {"\udfff": [1]}):
            assert await call("act", **arguments) == ToolResult.refused(
                "a text is not valid Unicode: it has half a surrogate pair"
            )
        assert (await call("act")).outcome is Outcome.SUCCESS
        assert not late(start, 2.5)


async def test_only_named_variables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "a secret")
    monkeypatch.setenv("SHARED_KEY", "a key with spaces")
    monkeypatch.setenv("SHORT", "e")
    async with connected(command=raw("shows a variable"), env=("SHARED_KEY", "SHORT")) as call:
        shown = {name: (await call("act", name=name)).text for name in ("CANARY_KEY", "SHARED_KEY", "SHORT", "PATH")}
    # a key is passed on to the server, and what it quotes of it to nobody
    assert shown == {"CANARY_KEY": "not set", "SHARED_KEY": "$SHARED_KEY", "SHORT": "e", "PATH": os.environ["PATH"]}


# --- servers that fail


@pytest.mark.clock
@pytest.mark.parametrize("by", siblings(["its own deadline", "the caller's"], quick=1))
async def test_a_server_that_hangs_is_replaced(by: str) -> None:
    async with connected(command=raw("answers"), timeout_s=0.5) as call:
        pid = int((await call("act")).text)
        start = time.monotonic()
        if by == "its own deadline":
            with pytest.raises(ToolError, match="it failed during a call of act") as e:
                await call("act", how="hangs")
            assert e.value.kind == "timeout"
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await call("act", how="hangs")
            assert not late(start, 0.45)
            assert wait_until(lambda: not alive(pid))
        assert int((await call("act")).text) != pid
        assert not late(start, 5)
        assert not alive(pid)


LIVELY = ("answers with no object", "answers another question", "hangs and lists")
"""Only the one call has no answer."""


@pytest.mark.clock
@pytest.mark.parametrize(
    "how, kind",
    [
        ("prints garbage", "transport"),
        ("prints a line without end", "transport"),
        ("sends a huge result", "transport"),
        ("closes its output", "transport"),
        ("ends", "transport"),
        ("is killed", "transport"),
        ("answers with the wrong shape", "garbage"),
        ("answers with no object", "timeout"),
        pytest.param("answers another question", "timeout", marks=pytest.mark.slow),
        pytest.param("hangs and lists", "timeout", marks=pytest.mark.slow),
        pytest.param("hangs", "timeout", marks=pytest.mark.slow),
        pytest.param("hangs and heeds nothing", "timeout", marks=pytest.mark.slow),
        pytest.param("floods the log", "timeout", marks=pytest.mark.slow),
    ],
)
async def test_every_failure_is_typed_and_in_time(how: str, kind: str) -> None:
    timeout_s = 0.5 if kind == "timeout" else 20.0
    async with connected(command=raw(how), timeout_s=timeout_s, max_message_bytes=2**20) as call:
        for _ in range(2):  # the second meets a server that was started anew
            start = time.monotonic()
            if how in LIVELY:
                assert (await call("act")).outcome is Outcome.TIMEOUT
            else:
                with pytest.raises(ToolError) as e:
                    await call("act")
                assert e.value.kind == kind
            assert not late(start, 8)


async def test_restarts_are_bounded_and_the_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(command=raw("ends"), max_restarts=2) as call:
        messages = []
        for _ in range(4):
            with pytest.raises(ToolError) as e:
                await call("act")
            messages.append(str(e.value))
        assert [message.partition(": ")[2] for message in messages] == [
            *["it failed during a call of act"] * 3,
            "gone for good after 2 restarts in a row: it ended with exit code 3: the disk is full",
        ]
    assert caplog.text.count("it ended with exit code 3: the disk is full; restart") == 2


async def test_an_answer_in_between_starts_the_count_anew() -> None:
    async with connected(command=raw("answers"), max_restarts=1) as call:
        pids = []
        for how in ("ends", "is killed", "ends"):
            pids.append((await call("act")).text)
            with pytest.raises(ToolError):
                await call("act", how=how)
        assert (await call("act")).outcome is Outcome.SUCCESS
        assert len(set(pids)) == 3


async def test_calls_in_flight_all_fail_when_the_server_dies() -> None:
    async with connected(command=raw("answers")) as call:
        calls = [asyncio.create_task(call("act", how="hangs and lists")) for _ in range(10)]
        pid = int((await call("act")).text)
        os.kill(pid, signal.SIGKILL)
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert [(type(e), getattr(e, "kind", "")) for e in failed] == [(ToolError, "transport")] * 10
        assert int((await call("act")).text) != pid


async def test_a_tool_that_changes_is_not_called_any_more(tmp_path: Path) -> None:
    async with connected(command=raw("answers")) as call:
        assert (await call("act")).outcome is Outcome.SUCCESS
        for how in ("changes", "answers"):
            with pytest.raises(ToolError, match="the tool act has changed or is gone") as e:
                await call("act", how=how)
            assert e.value.kind == "changed"
    async with connected(command=(*raw("changes at the next start"), str(tmp_path / "started"))) as call:
        for kind in ("transport", "changed", "changed"):
            with pytest.raises(ToolError) as e:
                await call("act")
            assert e.value.kind == kind


@pytest.mark.parametrize(
    "how, message",
    [
        ("ends at once", "it ended with exit code 1: no licence; start it by hand"),
        ("says nothing", "it did not say which tools it has within 1 s"),
        ("has no tools", "brings no tools; it has none"),
        pytest.param("lists without end", "lists more than 1000 tools, or never ends", marks=pytest.mark.slow),
        ("has no name for a tool", "MCP server python lists a tool without a name; every tool needs one"),
        ("says too much", "MCP server python describes its tool act in 20018 characters; 20000 are allowed"),
        ("takes too much", "MCP server python describes its tool act in 20065 characters; 20000 are allowed"),
    ],
)
def test_a_server_that_cannot_be_had_is_a_mistake_of_the_configuration(how: str, message: str) -> None:
    with pytest.raises(ConfigError) as e:
        Mcp(command=raw(how), start_timeout_s=1.0 if how == "says nothing" else 30.0)
    assert message in str(e.value)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"MCP server nowhere: it ended with exit code 127: nowhere: No such file"):
        Mcp(command="nowhere --at all")


# --- nothing is left behind


async def test_what_a_server_started_ends_with_it() -> None:
    async with connected(command=raw("answers")) as call:
        for how in ("is killed", "answers"):
            pids = [int((await call("act", how=how)).text) for how in ("answers", "starts a process")]
            assert [alive(pid) for pid in pids] == [True] * 2
            with pytest.raises(ToolError) if how == "is killed" else nullcontext():
                await call("act", how=how)
            if how == "is killed":
                await call("act")  # it is back
                assert [alive(pid) for pid in pids] == [False] * 2
    assert [alive(pid) for pid in pids] == [False] * 2


@pytest.mark.parametrize("number", siblings([signal.SIGKILL, signal.SIGTERM], quick=1))
def test_a_server_ends_with_the_trainer_however_that_dies(number: signal.Signals) -> None:
    program = f"""
        import asyncio, time
        from agentgrpo.tools.mcp.toolset import Mcp
        servers = [Mcp(command={raw("hangs and heeds nothing")!r}, shared=True) for _ in range(2)]
        for how in ("answers", "starts a process"):
            print(*(asyncio.run(server.ask("act", {{"how": how}}, None)).text for server in servers), flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", dedent(program)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in trainer.stdout.readline().split()]
        children = Path(f"/proc/{trainer.pid}/task").glob("*/children")
        guards = [int(pid) for listing in children for pid in listing.read_text().split()]
        assert (len(pids), len(guards)) == (4, 2)
        assert [alive(pid) for pid in pids + guards] == [True] * 6
        trainer.send_signal(number)
    assert wait_until(lambda: not any(map(alive, pids + guards)))


@pytest.mark.clock
def test_a_program_that_forgets_to_close_it_ends_in_time() -> None:
    program = f"from agentgrpo.tools.mcp.toolset import Mcp\nx = Mcp(command={raw('answers')!r})\nprint(len(x.tools))"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not late(start, 20)


def test_no_thread_descriptor_or_process_is_left() -> None:
    def held() -> tuple[int, int]:
        threads = [thread for thread in threading.enumerate() if thread.name == "mcp" or "waitpid" in thread.name]
        return len([*Path("/proc/self/fd").iterdir()]), len(threads)

    async def use(how: str) -> int:
        async with connected(command=raw("answers"), timeout_s=5.0) as call:
            pid = int((await call("act")).text)
            with pytest.raises(ToolError) if how == "ends" else nullcontext():
                await call("act", how=how)
            return pid

    asyncio.run(use("answers"))
    before = held()
    pids = [asyncio.run(use(how)) for how in ("answers", "ends", "answers", "ends")]
    assert [alive(pid) for pid in pids] == [False] * 4
    assert wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True))), (held(), before)


# --- over HTTP


class HttpServer:
    """The small server on a port of its own; `kill` and `start` it again on the same one."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        command = [*SMALL, "--http", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.kill()


@pytest.mark.slow
async def test_a_server_behind_a_url(http_server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with connected(url=http_server.url, api_key_env="SERVER_KEY", timeout_s=3.0) as call:
        results = await asyncio.gather(*(call("add", a=i, b=i) for i in range(20)))
        assert [result.text for result in results] == [str(2 * i) for i in range(20)]
        assert (await call("header", name="authorization")).text == "Bearer sk-1"
        assert (await call("header", name="accept-encoding")).text == "identity"
        assert (await call("fail", why="no")).outcome is Outcome.RUNTIME_ERROR
        assert (await call("wait", seconds=600)).outcome is Outcome.TIMEOUT
        assert (await call("add", a=1, b=1)).text == "2"


@pytest.mark.slow
async def test_a_url_s_server_that_dies_and_comes_back(http_server: HttpServer) -> None:
    async with connected(url=http_server.url, max_restarts=20) as call:
        calls = [asyncio.create_task(call("wait", seconds=600)) for _ in range(3)]
        await call("add", a=1, b=1)
        http_server.kill()
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(e) for e in failed] == [ToolError] * 3
        http_server.start()
        assert (await call("add", a=1, b=1)).text == "2"


def test_a_url_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"MCP server http://127.0.0.1:{port}/mcp: .*; start it by hand"):
        Mcp(url=f"http://127.0.0.1:{port}/mcp?key=secret")


# --- settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "command=None, url=None; give one of them: tools.mcp.command="),
        ({"command": "a", "url": "http://b"}, "give one of them"),
        ({"command": ""}, "give one of them"),
        ({"url": "ftp://b"}, "allowed is an http or https URL"),
        ({"url": "http://b", "env": ("HOME",)}, "env=['HOME'] is for a command"),
        ({"command": "a", "api_key_env": "HOME"}, "api_key_env=HOME is for a url"),
        ({"command": "a", "env": ("NO_SUCH_VARIABLE",)}, "the environment variable NO_SUCH_VARIABLE is not set"),
        ({"url": "http://b", "api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"),
        ({"command": "a", "timeout_s": 0.0}, "timeout_s=0.0"),
        ({"command": "a", "max_restarts": -1}, "max_restarts=-1"),
        ({"command": "a", "max_sessions": 0}, "max_sessions=0; 1 or more are allowed"),
        ({"command": raw("answers"), "allow": ("akt",)}, "has no tool akt; it has act"),
        ({"command": raw("answers"), "deny": ("other",)}, "has no tool other; it has act."),
        ({"command": raw("answers"), "deny": ("act",)}, "brings no tools; it has act"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        Mcp(**settings)
    assert message in str(e.value)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = "importlib.util.find_spec"
    monkeypatch.setattr(find_spec, lambda name, package=None: None)
    with pytest.raises(ConfigError, match=r"^tools of an MCP server need .*: pip install 'agentgrpo\[mcp\]'$"):
        Mcp(command="anything")


def test_the_package_loads_only_where_a_server_is_connected_to() -> None:
    program = (
        "import sys, agentgrpo.tools.mcp.toolset; print({n.split('.')[0] for n in sys.modules} & {'mcp', 'httpx2'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
