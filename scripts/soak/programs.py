"""Run 5,000 program episodes, three in ten with a fault, and check that they leave nothing behind.

    python -m scripts.soak.programs [--episodes 5000] [--seed 0]

A scripted model with the real environment, endpoint and processes; one episode in five is a command, the others are
functions. The faults: programs that hang, fork children that outlive them, print without end, are killed, ask with
another episode's key, cut their connections, or ask nothing. Every episode must end as its fault prescribes. At the end
no task, thread, process, descriptor or workspace may be left, and memory may have grown by less than 1 KiB an episode
(least squares over the second half).

Prints a closing line "N passed, N failed": it counts every episode and every check.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentgrpo.core.types import Episode, Message, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.loop import PolicyRunner
from scripts.soak.episodes import growth, held, told
from scripts.soak.troubles import draw

BLOCK, AT_ONCE = 100, 32
LEAST_BLOCKS = 20
"""Fewer blocks say nothing about memory, which a program still fills when it begins."""
WORDS = 500
"""Number of different numbers in the texts: a tokenizer caches the last 10,000 words, which is growth but no leak."""
MAX_GROWTH_KIB = 1.0
DEADLINES_S = {True: 5.0, False: 600.0}
"""Deadlines of programs that hang, and of others, which must not be late on a busy machine."""
SLEEP_S = 3600
COMMANDS = 0.2
ENDS = {
    "none": "answered",
    "hangs": "failed, timeout",
    "leaves children": "answered",
    "floods": "answered",
    "is killed": "failed, program",
    "asks with another key": "failed, after_answer",
    "cuts its connections": "answered",
    "asks nothing": "failed, program",
}
"""Fault -> how an episode with it ends."""
OF_COMMANDS = ("leaves children", "floods", "is killed")
FAULTS = 0.3

COMMAND = f"""
    import json, os, subprocess, sys, time, urllib.request

    def ask(messages, base=os.environ["OPENAI_BASE_URL"]):
        request = urllib.request.Request(base + "/chat/completions", json.dumps({{"messages": messages}}).encode())
        return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request))["choices"][0]

    task = json.load(sys.stdin)
    messages, fault = [{{"role": "user", "content": task["question"]}}], task["fault"]
    messages += [ask(messages)["message"], {{"role": "user", "content": "And?"}}]
    if fault == "hangs":
        time.sleep({SLEEP_S})
    if fault == "leaves children":
        for is_daemon in (False, True):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep({SLEEP_S})"], start_new_session=is_daemon)
    if fault == "floods":
        for _ in range(20):
            sys.stdout.write("x" * 999_999 + "\\n")
    if fault == "is killed":
        os.kill(os.getpid(), 9)
    if fault == "asks with another key":
        ask(messages, os.environ["OPENAI_BASE_URL"].replace("/episodes/", "/episodes/x"))
    ask(messages)
    print(0.5)
"""


async def function(task: Any, base_url: str) -> float:
    """The program of COMMAND as a function in this process."""
    fault = task["fault"]
    if fault == "asks nothing":
        return 0.5
    messages = [{"role": "user", "content": task["question"]}]
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=DEADLINES_S[False]) as client:

        async def ask(base: str = base_url) -> Any:
            answer = await client.post(f"{base}/chat/completions", json={"messages": messages})
            return answer.raise_for_status().json()["choices"][0]["message"]

        messages += [await ask(), {"role": "user", "content": "And?"}]
        if fault == "hangs":
            await asyncio.sleep(SLEEP_S)
        if fault == "asks with another key":
            await ask(base_url.replace("/episodes/", "/episodes/x"))
        if fault == "cuts its connections":
            given_up = asyncio.ensure_future(ask())
            await asyncio.sleep(0)
            given_up.cancel()
            url = httpx.URL(base_url)
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(f"POST {url.path}/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode())
            writer.close()
        await ask()
    return 0.5


@dataclass
class Soak:
    parent: Path
    seed: int
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, float]] = field(default_factory=list)
    """(episodes done, KiB)."""

    def __post_init__(self) -> None:
        texts = ["What is 12 and 13? user assistant And? The sum is 25."] * 30
        renderer = ReactRenderer(tokenizer=train_tokenizer(texts, control_strings=(), words=()))
        engine = ScriptedEngine(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=lambda key, context: f"The sum is {int(key.task_id) % WORDS}.",
            max_context=100_000,
        )
        path = self.parent / "agent.py"
        path.write_text(textwrap.dedent(COMMAND))
        programs: dict[str, Any] = {"function": {"function": function}, "command": {"command": f"python {path}"}}
        self.runners = {
            (form, hangs): PolicyRunner(
                environment=ProgramEnvironments(renderer=renderer, max_context=None, timeout_s=deadline_s, **options),
                engine=engine,
                renderer=renderer,
            )
            for form, options in programs.items()
            for hangs, deadline_s in DEADLINES_S.items()
        }

    def fate_of(self, number: int) -> tuple[str, str]:
        """Return (form, fault) of an episode."""
        form = "command" if draw(self.seed, number, "form") < COMMANDS else "function"
        fit = [f for f in ENDS if f != "none" and (f in OF_COMMANDS) <= (form == "command")]
        if form == "command":
            fit = [f for f in fit if f not in ("cuts its connections", "asks nothing")]
        share = draw(self.seed, number, "fault")
        return form, fit[int(share / FAULTS * len(fit))] if share < FAULTS else "none"

    async def one(self, number: int) -> None:
        form, fault = self.fate_of(number)
        question = Message(role="user", content=f"What is {number % WORDS} and 0?")
        task = Task(id=str(number), messages=(question,), references=(), metadata={"fault": fault})
        runner, sampling = self.runners[form, fault == "hangs"], SamplingParams(max_tokens=40)
        episode = await run_episode(runner, task, sample_index=0, stream="soak", sampling=sampling, retries=0)
        self.ends[f"{form}, {fault}"] += 1
        if (end := _end(episode)) != ENDS[fault]:
            said = episode.failure.message[:200] if episode.failure else ""
            self.wrong.append(f"episode {number} ({form}, {fault}) ended: {end}; expected: {ENDS[fault]} {said}")

    async def run(self, episodes: int) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await self.one(number)

        for start in range(0, episodes, BLOCK):
            done = min(start + BLOCK, episodes)
            await asyncio.gather(*map(one, range(start, done)))
            gc.collect()
            self.memory.append((done, psutil.Process().memory_info().rss / 1024))
            if done % 500 == 0 or done == episodes:
                counts = ", ".join(f"{count} {what}" for what, count in held().items())
                at = f"{done} episodes, {self.memory[-1][1] / 1024:.0f} MiB, {counts}, {time.process_time():.0f} CPU-s"
                print(f"{at}, {len(self.wrong)} ended otherwise than they should", flush=True)


def _end(episode: Episode) -> str:
    return f"failed, {episode.failure.kind}" if episode.failure is not None else episode.exit.value


async def soaked(soak: Soak, episodes: int) -> dict[str, int]:
    """Run the episodes and return the leftovers."""
    await soak.run(episodes)
    left = {
        "tasks": len(asyncio.all_tasks()) - 1,
        "workspaces": len(list(soak.parent.glob("*/*"))),
    }
    for runner in soak.runners.values():
        await runner.environment.close()
    return left


def verdicts(soak: Soak, left: dict[str, int], before: dict[str, int], after: dict[str, int]) -> dict[str, str]:
    """Check -> the problem found; "" if there is none."""
    found = {f"no {what} left": f"{count} left" * bool(count) for what, count in left.items()}
    for what, count in after.items():
        found[f"no {what} left"] = f"{before[what]} before, {count} after" * (count > before[what])
    if len(soak.memory) >= LEAST_BLOCKS:
        slope = growth(soak.memory)
        print(f"memory: {slope:+.3f} KiB an episode over the second half")
        found["memory"] = f"grows by {slope:.3f} KiB an episode" * (slope >= MAX_GROWTH_KIB)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # programs that fail are part of the test
    with tempfile.TemporaryDirectory() as parent:
        tempfile.tempdir = parent  # parent of the workspaces
        soak = Soak(Path(parent), options.seed)
        before = held()
        left = asyncio.run(soaked(soak, options.episodes))
        tempfile.tempdir = None
        gc.collect()
        found = verdicts(soak, left, before, held())
    return told(soak.wrong, found, soak.ends, options.episodes)


if __name__ == "__main__":
    sys.exit(main())
