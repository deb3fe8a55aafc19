"""Compare programs behind the endpoint with the engine alone: many concurrent episodes, each with a second of its own
work.

OMP_NUM_THREADS=1 python scripts/bench/programs.py

An episode asks three times in a growing conversation, and sleeps for a second in all. It runs as a function (httpx, in
this process) and as a command (a separate Python with the standard library only). The engine alone: the same calls,
made by coroutines that sleep as long, without endpoint, session and records. Weights are random; contexts and sampled
tokens are equal in all three. They alternate A B C A B C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import conditions
import httpx
import torch
from results import show, spread
from rich.table import Table
from workload import model, tokenizer
from works import SMALL, TINY, Work

from agentgrpo.core.types import Message, Task
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rollout.loop import PolicyRunner

SMOLLM2 = Work("smollm2", hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocab=49152, words=8192)
SHAPES = {work.name: work for work in (TINY, SMALL, SMOLLM2)}
TURNS, OWN_S, MOST_CONTEXT, SLOTS = 3, 1.0, 1024, 64
FORMS = ("engine alone", "function", "command")
Calls = dict[str, list[tuple[tuple[int, ...], SamplingParams, SeedKey]]]
"""Task -> the requests made for it, in order."""


async def agent(task: Any, base_url: str) -> float:
    messages = [{"role": "user", "content": task["question"]}]
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=600) as client:
        for _ in range(TURNS):
            await asyncio.sleep(OWN_S / TURNS)
            answer = await client.post(f"{base_url}/chat/completions", json={"messages": messages})
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    return 0.0


COMMAND = f"""
    import json, os, sys, time, urllib.request

    messages = [{{"role": "user", "content": json.load(sys.stdin)["question"]}}]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
    for _ in range({TURNS}):
        time.sleep({OWN_S / TURNS})
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        with opener.open(urllib.request.Request(url, json.dumps({{"messages": messages}}).encode())) as answer:
            messages.append(json.load(answer)["choices"][0]["message"])
        messages.append({{"role": "user", "content": "And then?"}})
    print(0.0)
"""


class NotedEngine(HFEngine):
    """An engine that notes its requests and its sampled tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Calls = defaultdict(list)
        self.sampled: dict[SeedKey, tuple[int, ...]] = {}

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        self.calls[key.task_id].append((tuple(token_ids), sampling, key))
        completion = await super().generate(token_ids, sampling, key)
        self.sampled[key] = completion.token_ids
        return completion


@dataclass(frozen=True)
class Found:
    wall_s: float
    cpu_s: float
    """CPU seconds of this process and of the programs."""
    sampled: dict[SeedKey, tuple[int, ...]]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.sampled.values())) / self.wall_s


class Bench:
    """An engine, and the same episodes in several forms."""

    def __init__(self, shape: Work, episodes: int, max_tokens: int, command: Path) -> None:
        words = tokenizer(shape.words)
        self.engine = NotedEngine(
            model=model(shape).eval(), tokenizer=words, run_seed=0, slots=SLOTS, max_context=MOST_CONTEXT
        )
        renderer = ReactRenderer(tokenizer=words)
        command.write_text(textwrap.dedent(COMMAND))
        programs: dict[str, Any] = {"function": {"function": agent}, "command": {"command": f"python {command}"}}
        self.runners = {
            form: PolicyRunner(
                environment=ProgramEnvironments(renderer=renderer, max_context=None, **options),
                engine=self.engine,
                renderer=renderer,
            )
            for form, options in programs.items()
        }
        self.tasks = [
            Task(id=str(i), messages=(Message(role="user", content=f"What is {i} and {i}?"),), references=())
            for i in range(episodes)
        ]
        self.sampling = SamplingParams(max_tokens=max_tokens)
        self.calls: Calls = {}

    async def run(self, form: str, number: int) -> Found:
        """Run all episodes at once, with nothing cached from the previous run."""
        await self.engine.load_weights(number)
        self.engine.calls, self.engine.sampled = defaultdict(list), {}
        began, used = time.perf_counter(), cpu_seconds()
        await asyncio.gather(*map(self._alone if form == "engine alone" else self._program(form), self.tasks))
        found = Found(time.perf_counter() - began, cpu_seconds() - used, self.engine.sampled)
        self.calls = self.calls or self.engine.calls
        return found

    def _program(self, form: str) -> Callable[[Task], Any]:
        runner = self.runners[form]
        return lambda task: runner.run(task, sample_index=0, stream="train/0", sampling=self.sampling)

    async def _alone(self, task: Task) -> None:
        for token_ids, sampling, key in self.calls[task.id]:
            await asyncio.sleep(OWN_S / TURNS)
            await self.engine.generate(token_ids, sampling, key)
        self.engine.release(key)


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


async def measured(bench: Bench, rounds: int) -> dict[str, list[Found]]:
    """`rounds` runs of each form, after one warm-up that records the requests."""
    warm = await bench.run("function", 0)
    found = [{form: await bench.run(form, number + 1) for form in FORMS} for number in range(rounds)]
    if any(each.sampled != warm.sampled for one in found for each in one.values()):
        conditions.fail("two forms did different work", 1)
    for runner in bench.runners.values():
        await runner.environment.close()
    return {form: [each[form] for each in found] for form in FORMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--episodes", type=int, default=500, help="at once")
    parser.add_argument("--tokens", type=int, default=32, help="sampled for a request, at most")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    args = parser.parse_args()
    conditions.require_positive(episodes=args.episodes, tokens=args.tokens, rounds=args.rounds)
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(SHAPES[args.shape], args.episodes, args.tokens, Path(folder, "agent.py"))
        found = asyncio.run(measured(bench, args.rounds))
    asked = f"{args.episodes} episodes at once, each {TURNS} × {args.tokens} tokens and {OWN_S:g} s of own work"
    shown = Table(
        "form", "wall s", "CPU s", "sampled tokens per s", "of the engine alone", title=f"{args.shape}: {asked}"
    )
    for form in FORMS:
        rates = [f.tokens_per_s for f in found[form]]
        share = median(a / b.tokens_per_s for a, b in zip(rates, found["engine alone"], strict=True))
        figures = ([f.wall_s for f in found[form]], [f.cpu_s for f in found[form]], rates)
        shown.add_row(form, *map(spread, figures), f"{share:.1%}")
    show(shown)


if __name__ == "__main__":
    sys.exit(main())
