"""Commands and functions: what they are given, what they say, and that one which misbehaves costs only itself."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgrpo.core.errors import BadValue, ConfigError, DataError, EnvironmentFailure, EpisodeError
from agentgrpo.core.types import Exit
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.environments.program.program import Tail
from agentgrpo.environments.program.sandbox import MAX_TAIL
from agentgrpo.tools.hidden_tests.sandboxed import HiddenTests
from tests.builders import task
from tests.environments.bad_numbers import NAMES
from tests.environments.program.played import END, RENDERER, Client, SpellingEngine, environments, play, user
from tests.tools.bubblewrap import needs_bubblewrap
from tests.tools.leftovers import alive

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
        assert (task["id"], task["question"]) == ("t0", "1+2?"), task
        assert os.environ["OPENAI_API_KEY"] and os.listdir() == ["task.json"]
        open("left.txt", "w").write("x")
        print("thinking")
        print(json.dumps({"reward": len(ask(task["question"])), "tests": 2, "answer": "three"}))
        print("done")
    """)
    made = environments(command)
    episode = await play(made, engine())
    assert (episode.answer, episode.exit) == ("three", Exit.ANSWERED)
    assert episode.outcome == {"reward": 3.0, "tests": 2.0}
    root = made.workspaces._root
    assert root is not None
    assert list(root.iterdir()) == []
    await made.close()


GRADED = {
    "reward_model": {"style": "rule", "ground_truth": {"target": ["three"]}},
    "extra_info": {"index": 0, "answer": "1+2=3\n#### 3"},
    "golden_answers": ["three"],
    "rubric": ["says", {"is": ["3"]}],
}
"""Columns of other trainers from which a program could read what is right."""


async def test_the_columns_that_grade_a_task_are_told_only_where_it_is_said_and_never_in_a_file(written: Any) -> None:
    command = written("""
        told = json.load(sys.stdin)
        lying = json.load(open("task.json"))
        ask("a")
        assert "tests" not in {*told, *lying} and lying["hint"] == "add"
        print(json.dumps({"reward": len({"references", "answer", "solution"} & {*told}), "lying": len({*lying})}))
    """)
    metadata = {"tests": {"test_it.py": ""}, "solution": "3", "hint": "add", **GRADED}
    for tell, count in (((), 0), (("references",), 1), (("references", "answer", "solution"), 3)):
        episode = await play(environments(command, tell=tell), engine(), metadata=metadata)
        assert episode.outcome == {"reward": float(count), "lying": 5.0}, (
            tell
        )  # id, data_source, prompt, question, hint
    with pytest.raises(
        DataError, match=r"environment.tell=reference: task t0 has no such column; it has prompt, question"
    ):
        environments(command, tell=("reference",)).rehearse(task(id="t0"), max_context=100)


async def test_a_report_is_what_the_command_itself_prints(written: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its children write to the same output, before it, between its lines and after its last one."""
    command = written("""
        import subprocess, time
        child = "import time\\nwhile True: print('{\\"reward\\": 1000}', flush=True); time.sleep(.001)"
        for daemon in (False, True):
            subprocess.Popen([sys.executable, "-c", child], start_new_session=daemon)
        ask("a")
        time.sleep(0.3)
        sys.stdout.write('{"reward": ')
        sys.stdout.flush()
        time.sleep(0.1)
        print("0.25}", flush=True)
        time.sleep(0.3)
    """)
    assert (await play(command, engine())).outcome == {"reward": 0.25}
    silent = written("""
        ask("a")
        os.system("echo '{\\"reward\\": 1000}'")
        for fd in ("/proc/self/fd/1", f"/proc/{os.getpid()}/fd/1", "/dev/stdout"):
            os.system(f"echo '{{\\"reward\\": 1000}}' > {fd}")
    """)
    assert (await play(silent, engine())).outcome == {}
    assert "which does not count: the command itself must print it" in caplog.text


async def test_what_a_command_has_reported_counts_where_the_policy_has_driven_it_past_a_limit(written: Any) -> None:
    command = written("""
        ask("a")
        print(json.dumps({"reward": 0.5}), flush=True)
        ask("b")
    """)
    episode = await play(command, engine(), max_requests=1)
    assert (episode.outcome, episode.exit) == ({"reward": 0.5}, Exit.MAX_TURNS)


async def test_a_command_gets_the_variables_that_are_usual_and_those_that_are_named(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    command = written("ask('a'); assert os.environ['PATH']; print(len(os.environ['SERPER_API_KEY']))")
    assert (await play(command, engine(), env=("SERPER_API_KEY",))).outcome == {"reward": 6.0}
    hint = r"KeyError: 'SERPER_API_KEY'; SERPER_API_KEY is set here and is not handed on, unless environment.env="
    with pytest.raises(EnvironmentFailure, match=hint):
        await play(command, engine())
    with pytest.raises(ConfigError, match=r"environment\.env: NO_SUCH is not set here"):
        environments(command, env=("NO_SUCH",))


@needs_bubblewrap
async def test_a_large_task_reaches_a_command_that_reads_late_or_not_at_all(written: Any) -> None:
    command = written("""
        ask("a")
        print(len(sys.stdin.read()) > 3_000_000)
        print(1.0)
    """)
    deaf = written("ask('a'); print(1.0)")
    for each in (command, deaf):
        episode = await play(each, engine(), metadata={"text": "x" * 3_000_000})
        assert episode.outcome == {"reward": 1.0}


@needs_bubblewrap
async def test_hidden_tests_grade_what_a_program_has_left_and_it_is_not_told_them() -> None:
    async def agent(task: Any, workspace: Path, base_url: str) -> dict[str, float]:
        assert "tests" not in task
        said = await Client(base_url).say([user("a")])
        (workspace / "solution.py").write_text(f"said = {said['content']!r}")
        return {"reward": 0.5}

    tests = "import solution\ndef test_it(): assert solution.said == 'yes'\ndef test_more(): assert solution.more\n"
    made = environments(agent, tests=HiddenTests())
    episode = await play(made, engine(), metadata={"tests": {"test_it.py": tests}})
    assert episode.outcome == {"reward": 1.0, "tests_passed": 0.5, "tests_failed": 1.0}
    with pytest.raises(DataError, match="t0 has no tests"):
        made.rehearse(task(), max_context=100)
    await made.close()


async def test_functions_are_called_by_the_names_of_their_parameters_or_with_one_object() -> None:
    async def by_name(task: Any, workspace: Path, base_url: str) -> float:
        assert (task["question"], workspace.parent.name[:9]) == ("1+2?", "agentgrpo")
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

    with pytest.raises(ConfigError, match=r"asks for server; allowed are task, base_url"):
        environments(odd)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("ask('a'); import time; time.sleep(60)", {"timeout_s": 0.4}, r"not done after 0.4 s"),
        ("ask('a'); os.kill(os.getpid(), 9)", {}, r"exit code 137"),
        ("ask('a'); sys.exit('no luck')", {}, r"exit code 1: no luck"),
        ("pass", {}, r"ended without a request to the policy"),
        ("ask('a'); print(json.dumps({'reward': 'high'}))", {}, r"reward is 'high'; a number is allowed"),
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
    with pytest.raises(EpisodeError, match=message):
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
    with pytest.raises(EnvironmentFailure, match=r"LookupError: no such tool.*environment\.failure_reward=0\.0") as e:
        await play(agent, SpellingEngine([f"no{END}"]))
    assert e.value.kind == "after_answer"
    with pytest.raises(EnvironmentFailure, match="not done"):  # its own doing
        await play(slow, SpellingEngine([f"no{END}"]), failure_reward=0.0, timeout_s=0.2)


async def test_a_program_that_fails_before_the_policy_has_answered_is_not_the_policy_s_doing() -> None:
    async def agent(base_url: str) -> float:
        raise LookupError("no such file")

    with pytest.raises(EnvironmentFailure, match=r"LookupError: no such file[^;]*$") as e:
        await play(agent, SpellingEngine([]), failure_reward=0.0)
    assert e.value.kind == "program"


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
    assert [pid for pid in pids if alive(pid)] == []
    await made.close()


async def test_a_command_that_is_cancelled_while_it_starts_leaves_nothing(written: Any) -> None:
    made, before = environments(written("ask('a'); import time; time.sleep(600)")), {*psutil.Process().children()}
    for turns in range(24):
        playing = asyncio.ensure_future(play(made, engine()))
        for _ in range(turns):
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert {*psutil.Process().children()} <= before, turns
    await made.close()


def waited_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()


@needs_bubblewrap
async def test_a_command_in_the_sandbox_reaches_the_endpoint_and_nothing_else(written: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = written(f"""
            import socket, tempfile

            def refused(act, *given):
                try:
                    act(*given)
                except OSError:
                    return True
                return False

            found = {{
                "reward": len(ask("a")) + len(ask("b")),
                "other servers": refused(socket.create_connection, ("127.0.0.1", {other.getsockname()[1]})),
                "files": refused(open, {str(tmp_path / "x")!r}, "w") and refused(os.remove, __file__),
                "processes": refused(os.kill, {os.getpid()}, 0),
                "workspace": not refused(open, "left.txt", "w") and not refused(tempfile.TemporaryFile),
            }}
            print(json.dumps({{name: float(value) for name, value in found.items()}}))
        """)
        made = environments(command, sandbox=True)
        before = psutil.Process().num_fds()
        episodes = await asyncio.gather(*(play(made, engine(), sample_index=i) for i in range(2)))
    expected = {"reward": 6.0} | dict.fromkeys(("other servers", "files", "processes", "workspace"), 1.0)
    assert [episode.outcome for episode in episodes] == [expected] * 2
    await asyncio.sleep(0)
    assert psutil.Process().num_fds() <= before + 1
    await made.close()


@needs_bubblewrap
async def test_a_command_in_the_sandbox_ends_with_all_that_it_has_started(written: Any) -> None:
    command = written("""
        import subprocess, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        ask("a")
        time.sleep(600)
    """)
    before = {*psutil.Process().children(recursive=True)}
    made = environments(command, sandbox=True, timeout_s=1.0)
    with pytest.raises(EnvironmentFailure, match="not done"):
        await play(made, engine())
    assert {*psutil.Process().children(recursive=True)} <= before
    with pytest.raises(EnvironmentFailure, match="exit code 137"):
        await play(environments(written("ask('a'); os.kill(os.getpid(), 9)"), sandbox=True), engine())
    await made.close()


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
        ({"function": slow, "sandbox": True}, r"a function runs in this process"),
        ({"command": "python x", "timeout_s": 0.0}, r"environment.timeout_s 0.0"),
        ({"command": "python x", "max_requests": 0}, r"environment.max_requests 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            ProgramEnvironments(renderer=RENDERER, **options)  # type: ignore[arg-type]


# --- What a program may report.


async def posting(*bodies: object, last: object = None, **options: Any) -> tuple[Any, list[tuple[int, str]]]:
    """The episode of a program that posts these rewards and returns `last`, and how each was answered."""
    answers: list[tuple[int, str]] = []

    async def agent(base_url: str, reward_url: str) -> Any:
        await Client(base_url).say([user("a")])
        for body in bodies:
            answer = await Client(reward_url).post(body, path="")
            answers.append((answer.status_code, answer.json().get("error", {}).get("message", "")))
        return last

    return await play(agent, engine(), **options), answers


async def test_rewards_out_of_their_range_are_refused_and_nothing_of_them_is_paid() -> None:
    sums = (
        "makes the reward {}, and environment.reward_range=[-1,1]; scale the reward, or set environment.reward_range={}"
    )
    episode, answers = await posting(
        *(1000, {"reward": 0.75, "seen": 1}, {"reward": 0.5, "seen": 2}, -3, 0.25, {"reward": -0.5}, 1e308, True),
        reward_range=(-1.0, 1.0),
        last={"reward": 0.25, "calls": 2},
    )
    assert [status for status, _ in answers] == [400, 200, 400, 400, 200, 200, 400, 400]
    assert sums.format(1000, "[-1000,1000]") in answers[0][1]
    assert sums.format("1.25", "[-2,2]") in answers[2][1]
    assert "reward is 1e+308; a number from -1e+12 to 1e+12 is allowed" in answers[6][1]
    assert episode.outcome == {"reward": 0.75, "seen": 1.0, "calls": 2.0}
    assert episode.metrics["refused_rewards"] == 5.0
    with pytest.raises(
        BadValue, match=r"said last makes the reward 2.5, and .*=\[-1,1\]; .* set environment.reward_range=\[-3,3\]"
    ):
        await posting(last=2.5, reward_range=(-1.0, 1.0))
    with pytest.raises(BadValue, match=r"makes the reward 1.5, and .*=\[0,1\]"):
        await posting(0.75, last={"reward": 0.75}, reward_range=(0.0, 1.0))
    assert (await posting(0.1, 0.2, 0.7, last=0.1 - 0.1, reward_range=(0.0, 1.0)))[0].outcome["reward"] == 1.0
    assert (await posting(1000, reward_range=None))[0].outcome == {"reward": 1000.0}


async def test_a_program_that_falls_over_a_refusal_says_so() -> None:
    async def agent(base_url: str, reward_url: str) -> None:
        await Client(base_url).say([user("a")])
        (await Client(reward_url).post(2.5, path="")).raise_for_status()

    refused = r"400 Bad Request.* \(a reward was refused before: .*reward_range=\[-3,3\]\)"
    with pytest.raises(EnvironmentFailure, match=f"(?s){refused}"):
        await play(agent, engine(), reward_range=(-1.0, 1.0))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("turns", "number", "surrogate")])
async def test_names_that_no_metric_has_are_refused(name: str) -> None:
    episode, [(status, message)] = await posting({"reward": 0.5, **NAMES[name]})
    assert (status, episode.outcome, episode.metrics["refused_rewards"]) == (400, {}, 1.0)
    assert len(message) < 600
    assert message.isprintable()


async def test_what_is_measured_around_a_program_is_not_the_programs_to_say() -> None:
    episode, answers = await posting({"requests": -5}, {"tests_passed": 1}, {"exit_answered": 0, "mine": 1})
    assert [status for status, _ in answers] == [400, 200, 400]
    assert (
        "a metric requests, which the environment measures itself; call it something else than branches, "
        in answers[0][1]
    )
    assert (episode.metrics["requests"], episode.metrics["exit_answered"]) == (1.0, 1.0)
    assert episode.outcome == {"tests_passed": 1.0}
    with pytest.raises(BadValue, match="what the program said last gave a metric failed_programs, which"):
        await posting(last={"reward": 0.5, "failed_programs": 0})
    many: list[object] = [{f"n{i}": 1 for i in range(start, start + 40)} for start in (0, 40, 80)]
    episode, answers = await posting(*many)
    assert [status for status, _ in answers] == [200, 200, 400]
    assert len(episode.outcome) == 80


def test_a_range_has_a_smaller_and_a_larger_number() -> None:
    for bounds in ((1.0, -1.0), (1.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match=r"environment.reward_range=\[.*\]: two numbers are allowed, the smaller"):
            environments(slow, reward_range=bounds)
