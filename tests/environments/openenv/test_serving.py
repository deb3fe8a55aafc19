"""`agentgrpo serve-environment`, asked by OpenEnv's own client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import agentgrpo
from agentgrpo.cli.main import main
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import ToolCall
from agentgrpo.environments.openenv.server import EnvServer
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.tasks.base import ToolDemonstrator
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.workshop.dataset import Workshop

client = pytest.importorskip("openenv.core.generic_client")
websockets = pytest.importorskip("websockets")
pytestmark = pytest.mark.slow
ROOT = Path(agentgrpo.__file__).parents[1]
MODEL = ["model=path", "model.path=model", "hardware.threads=1", "run.log_with=[]", "run.screen=quiet"]
ALMANAC = [
    "experiment=almanac",
    "task.num_companies=12",
    "task.dev_companies=4",
    "task.test_companies=4",
    *MODEL,
    "environment.examples=false",
]
WORKSHOP = ["experiment=tools", "task.test_tasks=24", *MODEL]
SHORT = ["run.eval.tasks=4", "rollout.max_tokens=200"]


@contextmanager
def served(*settings: str, errors: Path | None = None) -> Iterator[str]:
    """Its URL. What it says on stderr goes to `errors`."""
    command = [sys.executable, "-m", "agentgrpo", "serve-environment", *settings, "--port", "0", "--max-sessions", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (
        (errors or Path(os.devnull)).open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr if errors else None, text=True, env=environment
        ) as server,
    ):
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("serving "))
        try:
            yield line.split()[3].removesuffix(":")
        finally:
            server.terminate()
            code = server.wait(30)
    assert code == 0


def rewards_of_our_own_loop(*settings: str) -> dict[str, tuple[list[str], float]]:
    """By task: what the task set's ideal policy has said, cut where a policy's turn would be, and what it was worth."""
    assert main(["eval", "engine=scripted", *settings, *SHORT, "run.dir=ours"]) == 0
    records = read_trajectories(Path("ours/trajectories/eval-end-greedy.jsonl"))
    found = {}
    for record in records:
        said = [segment.text for branch in record.branches for segment in branch.segments if segment.sampled]
        found[record.task] = (said, float(record.reward or 0.0))
    assert len(found) == 4
    return found


def test_what_the_ideal_policy_says_is_worth_the_same_to_a_client_of_openenv(desk: Path) -> None:
    ours = rewards_of_our_own_loop(*ALMANAC)
    assert len({reward for _, reward in ours.values()}) > 1
    order = [task.id for task in Almanac(num_companies=12, dev_companies=4, test_companies=4).split("test")]

    async def play(url: str) -> None:
        async with client.GenericEnvClient(base_url=url) as env, client.GenericEnvClient(base_url=url) as other:
            for id, (turns, worth) in ours.items():
                await env.reset(split="test", index=order.index(id))
                assert (await env.state())["episode_id"] == id
                await other.reset(seed=3)  # which disturbs nobody
                results = [await env.step({"text": text}) for text in turns]
                assert [result.done for result in results] == [False] * (len(turns) - 1) + [True]
                assert [result.reward for result in results] == [0.0] * (len(turns) - 1) + [pytest.approx(worth)]
            with pytest.raises(RuntimeError, match=r"index 99999: the split test has \d+ tasks"):
                await env.reset(split="test", index=99999)
            for seed in ("%9999999999d", 1.5, True, [1]):  # the first would be a text of 10 GB, as a format
                with pytest.raises(RuntimeError, match="; a whole number is allowed"):
                    await env.reset(seed=seed)
            with pytest.raises(
                RuntimeError, match=r"reset has no argument difficulty; seed, episode_id, split and ind"
            ):
                await env.reset(difficulty="hard")
            for wrong in ({"split": ["test"]}, {"split": 3}, {"episode_id": 7}):
                with pytest.raises(RuntimeError, match=r"(split|episode_id) .*; a text is allowed"):
                    await env.reset(**wrong)

    with served(*ALMANAC, *SHORT) as url:
        asyncio.run(play(url))


def test_tool_calls_come_from_a_client_of_openenv(desk: Path) -> None:
    ours = rewards_of_our_own_loop(*WORKSHOP)
    dataset = Workshop(test_tasks=24)
    tasks = {task.id: (index, task) for index, task in enumerate(dataset.split("test"))}

    async def play(url: str) -> None:
        async with client.GenericEnvClient(base_url=url) as env:
            for id, (turns, worth) in ours.items():
                index, task = tasks[id]
                result = await env.reset(split="test", index=index)
                assert result.observation["tools"][0]["function"]["parameters"]["type"] == "object"
                oracle, answered = dataset.oracle(task), list[str]()
                assert isinstance(oracle, ToolDemonstrator)
                for _ in turns:
                    assert not result.done
                    result = await env.step(action_of(oracle.next_turn(answered)))
                    answered += [m["content"] for m in result.observation["messages"] if m["role"] == "tool"]
                assert result.done
                assert result.reward == pytest.approx(worth)
            with pytest.raises(RuntimeError, match="no episode is under way; reset the environment"):
                await env.step({"text": "more"})

    with served(*WORKSHOP, *SHORT) as url:
        asyncio.run(play(url))


def action_of(turn: ParsedTurn) -> dict[str, Any]:
    calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls if isinstance(c, ToolCall)]
    return {"text": turn.answer or turn.content, "tool_calls": calls}


def test_clients_that_leave_without_a_word_are_no_errors(desk: Path) -> None:
    async def leave(url: str) -> None:
        for i in range(9):
            connection = await websockets.connect(f"{url.replace('http', 'ws')}/ws")
            await connection.send('{"type": "reset", "data": {}}')
            if i % 3 == 0:
                await connection.recv()
            connection.transport.abort()
        async with client.GenericEnvClient(base_url=url) as env:  # which is served after them
            assert not (await env.reset()).done

    with served(*ALMANAC, *SHORT, errors=Path("errors.txt")) as url:
        asyncio.run(leave(url))
    assert "Traceback" not in Path("errors.txt").read_text(encoding="utf-8")


def test_a_server_with_a_key_and_its_silent_clients(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own client and OpenEnv's bring the key; two that are silent keep nobody out for longer than --idle-s."""
    monkeypatch.setenv("SERVERS_KEY", "the-operators")

    async def play(url: str) -> None:
        address = url.replace("http", "ws")
        for given in (
            {},
            {"origin": "http://evil.example", "additional_headers": {"Authorization": "Bearer the-operators"}},
        ):
            with pytest.raises(websockets.InvalidStatus):
                await websockets.connect(f"{address}/ws", **given)
        with pytest.raises(websockets.InvalidStatus):  # it would begin sessions without a connection
            await websockets.connect(f"{address}/mcp?api_key=the-operators")
        silent = [await websockets.connect(f"{address}/ws?api_key=the-operators") for _ in range(2)]
        late = await websockets.connect(f"{address}/ws?api_key=the-operators")
        assert "CAPACITY_REACHED" in await late.recv()
        await late.wait_closed()
        assert (late.close_code, str(late.close_reason).partition(":")[0]) == (1013, "Server at capacity")
        for connection in silent:
            await connection.wait_closed()
            assert connection.close_code == 1008
        async with client.GenericEnvClient(base_url=url.replace("//", "//any:the-operators@")) as env:
            assert not (await env.reset()).done
        ours = EnvServer(
            url=url, command=None, api_key_env="SERVERS_KEY", most=None, timeout_s=60.0, start_timeout_s=60.0
        )
        assert "text" in (await ours.action_schema())["properties"]
        session, seen = await ours.session({"seed": 3})
        assert seen["observation"]["messages"]
        await session.close()

    with served(*ALMANAC, *SHORT, "--api-key-env", "SERVERS_KEY", "--idle-s", "4") as url:
        asyncio.run(play(url))


def test_a_program_is_no_environment_to_be_served(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["experiment=none", *MODEL, "task.questions=q.jsonl", "environment=program", "reward=environment"]
    command = "environment.command='python -V'"
    assert main(["serve-environment", *given, command, "--port", "0"]) == 2
    assert "environment=program runs a program that acts; an environment that answers" in capsys.readouterr().err
    assert main(["serve-environment", *given, command, "--max-sessions", "0"]) == 2
    assert "--max-sessions 0; at least 1 is allowed" in capsys.readouterr().err
    assert main(["serve-environment", *given, command, "--idle-s", "0"]) == 2
    assert "--idle-s 0; at least 1 is allowed" in capsys.readouterr().err
