"""Commands and functions: what they are given, what they say, and that one which misbehaves costs only itself."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.core.types import Exit
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.environments.program.program import MAX_TAIL, Tail
from tests.environments.program.played import END, RENDERER, Client, SpellingEngine, environments, play, user

ASK = """
import json, os, sys, urllib.request

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode())
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request))

def ask(text, base=os.environ["OPENAI_BASE_URL"]):
    answer = post(base + "/chat/completions", {"messages": [{"role": "user", "content": text}]})
    return answer["choices"][0]["message"]["content"]

"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A program of these lines, as it is named on a command line."""
    monkeypatch.chdir(tmp_path)

    def write(lines: str) -> str:
        Path("agent.py").write_text(ASK + textwrap.dedent(lines))
        return "python agent.py"

    return write


def engine() -> SpellingEngine:
    return SpellingEngine(lambda context: f"yes{END}")


async def test_a_command_gets_its_task_and_says_what_it_was_worth(written: Any) -> None:
    command = written("""
        task = json.load(sys.stdin)
        assert task == json.load(open("task.json")) == json.load(open(os.environ["AGENTGRPO_TASK"]))
        assert (task["id"], task["question"], task["references"]) == ("t0", "1+2?", ["3"]), task
        assert os.environ["OPENAI_API_KEY"] and os.listdir() == ["task.json"]
        post(os.environ["AGENTGRPO_REWARD_URL"], {"reward": 0.25, "tests": 1})
        post(os.environ["AGENTGRPO_REWARD_URL"], 0.5)
        open("left.txt", "w").write("x")
        print("thinking")
        print(json.dumps({"reward": len(ask(task["question"])), "tests": 2, "answer": "three"}))
        print("done")
    """)
    made = environments(command)
    episode = await play(made, engine())
    assert (episode.answer, episode.exit) == ("three", Exit.ANSWERED)
    assert episode.outcome == {"reward": 3.75, "tests": 2.0}
    root = made.workspaces._root
    assert root is not None
    assert list(root.iterdir()) == []
    await made.close()


async def test_functions_are_called_by_the_names_of_their_parameters_or_with_one_object() -> None:
    async def by_name(task: Any, workspace: Path, base_url: str) -> float:
        assert (task["answer"], workspace.parent.name[:9]) == ("3", "agentgrpo")
        return len((await Client(base_url).say([user("a")]))["content"])

    async def whole(program: Any) -> str:
        await Client(program.base_url).say([user(program.task["question"])])
        return "an answer"

    def plain(base_url: str) -> None:
        asyncio.run(Client(base_url).say([user("a")]))

    assert (await play(by_name, engine())).outcome == {"reward": 3.0}
    episode = await play(whole, engine())
    assert (episode.outcome, episode.answer) == ({}, "an answer")
    assert (await play(plain, engine())).answer == "yes"

    async def odd(task: Any, server: str) -> None: ...

    with pytest.raises(ConfigError, match=r"asks for server; it is given task, base_url"):
        environments(odd)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("ask('a'); import time; time.sleep(60)", {"timeout_s": 0.4}, r"not done after 0.4 s"),
        ("ask('a'); os.kill(os.getpid(), 9)", {}, r"exit code 137"),
        ("ask('a'); sys.exit('no luck')", {}, r"exit code 1: no luck"),
        ("pass", {}, r"asked the policy nothing"),
        ("ask('a'); print(json.dumps({'reward': 'high'}))", {}, r"a number, numbers by name"),
        (
            "ask('a'); base = os.environ['OPENAI_BASE_URL'].split('/'); base[4] = 'x' * 32; ask('a', '/'.join(base))",
            {},
            r"HTTP Error 404",
        ),
    ],
)
async def test_a_program_that_fails_costs_its_own_attempt(
    written: Any, lines: str, options: dict[str, Any], message: str
) -> None:
    made = environments(written(lines), **options)
    with pytest.raises(EnvironmentFailure, match=message):
        await play(made, engine())
    await made.close()


async def test_a_program_that_fails_by_the_policys_doing_may_be_worth_something() -> None:
    async def agent(base_url: str, reward_url: str) -> float:
        client = Client(base_url)
        if "no" in (await client.say([user("a")]))["content"]:
            await Client(reward_url).post({"reward": 0.5}, path="")
            raise LookupError("no such tool")
        return 1.0

    episode = await play(agent, SpellingEngine([f"no{END}"]), failure_reward=-1.0)
    assert (episode.outcome, episode.answer, episode.exit) == ({"reward": -0.5}, None, Exit.FORMAT_ERROR_LIMIT)
    assert episode.metrics["failed_programs"] == 1.0
    assert [s.text for s in episode.turns] == [f"no{END}"]
    with pytest.raises(EnvironmentFailure, match="LookupError: no such tool"):
        await play(agent, SpellingEngine([f"no{END}"]))
    with pytest.raises(EnvironmentFailure, match="not done"):  # its own doing
        await play(slow, SpellingEngine([f"no{END}"]), failure_reward=0.0, timeout_s=0.2)


async def slow(base_url: str) -> None:
    await Client(base_url).say([user("a")])
    await asyncio.sleep(60)


async def test_all_that_a_program_has_started_ends_with_it_daemons_too(written: Any, tmp_path: Path) -> None:
    """A child, one in a session of its own that ignores SIGTERM, and a daemon that holds the pipes open."""
    noted = tmp_path / "pids"
    command = written(f"""
        import subprocess, time
        sleeper = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
        pids = [subprocess.Popen(sleeper, start_new_session=daemon).pid for daemon in (False, True)]
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open("whole", "w").write(json.dumps([*pids, os.getpid()]))
                os.rename("whole", {str(noted)!r})
                time.sleep(600)
            os._exit(0)
        while True:
            time.sleep(1)
    """)
    made = environments(command)
    playing = asyncio.ensure_future(play(made, engine()))
    pids = json.loads(await asyncio.to_thread(waited_for, noted))
    assert [psutil.pid_exists(pid) for pid in pids] == [True] * 3
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []
    await made.close()


def waited_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()


async def test_of_a_flood_only_the_end_is_kept(written: Any) -> None:
    command = written("""
        for _ in range(300):
            sys.stdout.write("x" * 99_999 + "\\n")
            sys.stderr.write("y" * 99_999 + "\\n")
        print(len(ask("a")))
    """)
    assert (await play(command, engine())).outcome == {"reward": 3.0}
    ours, theirs = os.pipe()
    tail = Tail(ours)
    for _ in range(5):
        os.write(theirs, b"x" * 30_000 + b"y" * 30_000)
        tail.drain()
    assert bytes(tail.content) == (b"x" * 30_000 + b"y" * 30_000)[-MAX_TAIL:].rjust(MAX_TAIL, b"y")
    tail.close()
    os.close(theirs)


async def test_programs_side_by_side_do_not_meet(written: Any) -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        for _ in range(3):
            messages += [await client.say(messages), user("b")]
        return 1.0

    made, sampler = environments(agent), engine()
    before = psutil.Process().num_fds()
    episodes = await asyncio.gather(*(play(made, sampler, sample_index=i) for i in range(20)))
    assert {e.metrics["continued_share"] for e in episodes} == {1.0}
    assert [len(e.turns) for e in episodes] == [3] * 20
    assert sorted(k.turn for _, _, k in sampler.asked) == sorted([*range(3)] * 20)
    await asyncio.sleep(0)
    assert psutil.Process().num_fds() <= before + 2


def test_what_is_no_program_is_said_in_one_line() -> None:
    for options, message in (
        ({}, r"neither is given"),
        ({"command": "python", "function": environments}, r"both is given"),
        ({"command": "no-such-program x"}, r"there is no program 'no-such-program'"),
        ({"command": "python 'x"}, r"No closing quotation"),
        ({"command": "python x", "timeout_s": 0.0}, r"environment.timeout_s 0.0"),
        ({"command": "python x", "max_requests": 0}, r"environment.max_requests 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            ProgramEnvironments(renderer=RENDERER, **options)  # type: ignore[arg-type]
