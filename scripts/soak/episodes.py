"""Run 10,000 tool episodes, three in ten with a fault, and check that they leave nothing behind.

    python -m scripts.soak.episodes [--episodes 10000] [--seed 0]

A scripted model with the real environment, toolbox, workspaces and tools (calculator, files, functions in separate
processes, programs in the sandbox). The faults: tools that hang in four ways, raise, crash, return no result or too
much, or cancel themselves; malformed calls; episodes cancelled half-way. Every episode must end as its fault
prescribes. At the end no task, thread, process, descriptor or workspace may be left, and memory may have grown by less
than 1 KiB an episode (least squares over the second half). Hanging episodes run beside the others in one block and
after them in the next; the 95th percentile of the other episodes' latency may differ by at most a tenth.

Prints a closing line "N passed, N failed": it counts every episode and every check.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agentgrpo.core.concurrency import on_idle_loop
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Episode, Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.tools.environment import ToolEnvironments
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tools.workspace import Workspaces
from scripts.soak.troubles import DEADLINE_S, END, HANGS, KEEPS_PROCESSES, called, draw, fate_of, tools

BLOCK = 100
"""Episodes of one block."""
AT_ONCE = 8
"""Concurrent episodes that do not hang, and as many that do."""
LEAST_BLOCKS = 20
"""Fewer blocks say nothing about latency, or about memory, which a program still fills when it begins."""
WORDS = 500
"""Number of different numbers in the texts: a tokenizer caches the last 10,000 words, which is growth but no leak."""
MAX_GROWTH_KIB, MAX_SLOWDOWN = 1.0, 1.10
STOP = "\nObservation:"


def written(name: str, arguments: object) -> str:
    return f"Action: {name}\nAction Input: {json.dumps(arguments)}{STOP}"


@dataclass
class Soak:
    parent: Path
    seed: int
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: dict[bool, list[list[float]]] = field(default_factory=lambda: {True: [], False: []})
    """Latencies of episodes without a fault, by block: key True while others hang, False while no episode hangs."""
    memory: list[tuple[int, float]] = field(default_factory=list)
    """(episodes done, KiB)."""

    def __post_init__(self) -> None:
        texts = [written("calculator", {"expression": "12*3"}) * 30, "Final Answer: What is the result of it? user"]
        self.renderer = renderer = ReactRenderer(tokenizer=train_tokenizer(texts, control_strings=(), words=()))
        self.tools = tools()
        self.workspaces = Workspaces(self.parent)
        self.runner = PolicyRunner(
            environment=ToolEnvironments(
                renderer=renderer,
                tools=self.tools,
                workspaces=self.workspaces,
                tool_timeout_s=DEADLINE_S,
                max_context=100_000,
            ),
            engine=ScriptedEngine(
                encode=renderer.encode_action, decode=renderer.decode, script=self.said, max_context=100_000
            ),
            renderer=renderer,
        )

    def said(self, key: SeedKey, context: str) -> str:
        """The turns of an episode: a sum, its result into a file, a greeting, the call that decides, and the answer. A
        hanging episode has only the last two turns, so that it does nothing but hang."""
        number = int(key.task_id)
        fate, small = fate_of(number, self.seed), number % WORDS
        turns = [
            written("calculator", {"expression": f"{small}+1"}),
            written("write_file", {"path": "result.txt", "content": str(small + 1)}),
            written("greet", {"name": str(small)}),
            written(*called(fate, number)),
        ]
        turns = turns[-1:] if fate in HANGS else turns
        return turns[key.turn] if key.turn < len(turns) else self.renderer.write(ParsedTurn(answer=str(small + 1)))

    async def one(self, number: int) -> float | None:
        """Run one episode and check its end. Return its seconds if it has no fault, else None."""
        fate = fate_of(number, self.seed)
        task = Task(
            id=str(number),
            messages=(Message(role="user", content=f"What is {number % WORDS} + 1?"),),
            references=(_right(number),),
            metadata={"files": {"notes.txt": "nothing\n" * 10}},
        )
        began = time.perf_counter()
        running = asyncio.create_task(
            run_episode(
                self.runner, task, sample_index=0, stream="soak", sampling=SamplingParams(max_tokens=400), retries=1
            )
        )
        if fate == "episode_cancelled":
            await asyncio.sleep(draw(self.seed, number, "when") * 0.3)
            running.cancel()
        await asyncio.wait({running})
        seconds = time.perf_counter() - began
        end = _end(running, number)
        self.ends[fate] += 1
        if end != END[fate] and not (fate == "episode_cancelled" and end == END["hanging_function"]):
            self.wrong.append(f"episode {number} ({fate}) ended: {end}; expected: {END[fate]}")
        return seconds if fate == "none" else None

    async def block(self, numbers: Sequence[int], *, beside: bool) -> None:
        hanging = [n for n in numbers if fate_of(n, self.seed) in HANGS]
        others = [n for n in numbers if fate_of(n, self.seed) not in HANGS]
        if beside:
            stuck = asyncio.create_task(self.all(hanging, AT_ONCE))
            await asyncio.sleep(DEADLINE_S / 3)  # their processes have started, so they do hang
            latencies = await self.all(others, AT_ONCE)
            await stuck
        else:
            latencies = await self.all(others, AT_ONCE)
            await self.all(hanging, AT_ONCE)
        self.latencies[beside].append(latencies)

    async def all(self, numbers: Sequence[int], at_once: int) -> list[float]:
        room = asyncio.Semaphore(at_once)

        async def one(number: int) -> float | None:
            async with room:
                return await self.one(number)

        return [s for s in await asyncio.gather(*map(one, numbers)) if s is not None]

    async def run(self, episodes: int) -> None:
        for i, start in enumerate(range(0, episodes, BLOCK)):
            # A B B A: a drift affects both alike
            await self.block(range(start, min(start + BLOCK, episodes)), beside=i % 4 in (0, 3))
            gc.collect()
            done = min(start + BLOCK, episodes)
            self.memory.append((done, psutil.Process().memory_info().rss / 1024))
            if done % 1000 == 0 or done == episodes:
                at = f"{done} episodes, {self.memory[-1][1] / 1024:.0f} MiB, {time.process_time():.0f} CPU-seconds"
                print(f"{at}, {len(self.wrong)} ended otherwise than they should", flush=True)

    async def close(self) -> None:
        for tool in self.tools.values():
            await tool.close()


def _right(number: int) -> str:
    return str(number % WORDS + 1)


def _end(running: asyncio.Task[Episode], number: int) -> str:
    if running.cancelled():
        return "cancelled"
    episode = running.result()
    if episode.failure is not None:
        return f"failed, {episode.failure.kind}"
    last = episode.tool_records[-1].outcome.value if episode.tool_records else "no call"
    return f"{episode.exit.value if episode.answer == _right(number) else episode.answer}, {last}"


def growth(memory: Sequence[tuple[int, float]]) -> float:
    """Growth in KiB an episode over the second half."""
    late = memory[len(memory) // 2 :]
    if len(late) < 2:
        return 0.0
    return statistics.linear_regression([float(n) for n, _ in late], [kib for _, kib in late]).slope


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


STANDING = ("agentgrpo-idle-loop", "agentgrpo-outside", "agentgrpo-reader_0", "agentgrpo-reader_1")
"""Threads that a process starts once, when they are first needed, and keeps."""


def held() -> dict[str, int]:
    """Resources that a process can forget to release."""
    me = psutil.Process()
    return {
        "threads": me.num_threads() - sum(thread.name in STANDING for thread in threading.enumerate()),
        "processes": len(me.children(recursive=True)),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


async def soaked(soak: Soak, episodes: int) -> dict[str, int]:
    """Run the episodes and count leftovers: tasks, workspaces and processes before the hanging tools are closed, and a
    root directory after.
    """
    try:
        await soak.run(episodes)
        for name in KEEPS_PROCESSES:
            await soak.tools[name].close()
        left = {
            "tasks": len(asyncio.all_tasks()) - 1,
            "workspaces": len(list(soak.parent.glob("*/*"))),
            "hanging processes": held()["processes"],
        }
    finally:
        await soak.close()
        await soak.workspaces.close()
    return left | {"root of workspaces": len(list(soak.parent.glob("*")))}


def verdicts(soak: Soak, left: dict[str, int], before: dict[str, int], after: dict[str, int]) -> dict[str, str]:
    """Check -> the problem found; "" if there is none."""
    found = {f"no {what} left": f"{count} left" * bool(count) for what, count in left.items()}
    for what, count in after.items():
        found[f"no {what} left"] = f"{before[what]} before, {count} after" * (count > before[what])
    beside, alone = soak.latencies[True], soak.latencies[False]
    if len(soak.memory) >= LEAST_BLOCKS:
        slope = growth(soak.memory)
        print(f"memory: {slope:+.3f} KiB an episode over the second half")
        found["memory"] = f"grows by {slope:.3f} KiB an episode" * (slope >= MAX_GROWTH_KIB)
        ratio = statistics.median(p95(a) / p95(b) for a, b in zip(beside, alone, strict=False))
        pooled = [p95([s for block in blocks for s in block]) * 1000 for blocks in (beside, alone)]
        print(
            f"latency of episodes without a fault, p95: {pooled[0]:.1f} ms while others hang, {pooled[1]:.1f} ms while "
            f"none does; ratio of neighbouring blocks, median of {min(len(beside), len(alone))}: {ratio:.3f}"
        )
        found["latency"] = f"{ratio:.3f} times as long while others hang" * (ratio >= MAX_SLOWDOWN)
    return found


def told(wrong: Sequence[str], found: Mapping[str, object], ends: Mapping[str, int], episodes: int) -> int:
    """Print the problems, the ends of the episodes, and "N passed, N failed". Return 1 if something failed."""
    for line in wrong[:20]:
        print(line)
    for check, problem in found.items():
        if problem:
            print(f"{check}: {problem}")
    print(", ".join(f"{fate} {count}" for fate, count in sorted(ends.items())))
    failed = len(wrong) + sum(map(bool, found.values()))
    print(f"{episodes + len(found) - failed} passed, {failed} failed")
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # abandoned calls, which log errors, are part of the test
    with tempfile.TemporaryDirectory() as parent:
        soak = Soak(Path(parent), options.seed)
        asyncio.run(on_idle_loop(asyncio.sleep(0)))  # the thread that it starts belongs to the process and stays
        before = held()
        left = asyncio.run(soaked(soak, options.episodes))
    gc.collect()
    found = verdicts(soak, left, before, held())
    return told(soak.wrong, found, soak.ends, options.episodes)


if __name__ == "__main__":
    sys.exit(main())
