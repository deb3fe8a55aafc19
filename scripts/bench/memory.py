"""Time memory episodes: concurrent against one after another, with and without telling the engine about the shared
opening.

OMP_NUM_THREADS=1 python scripts/bench/memory.py

The memory environment's whole loop: prompts of instructions, memory and chunk, one sampled turn each, its calls
applied, the questions answered from the memory at the end. The weights are random and the turns prescribed (one or two
inserts, determined by the names of the episode and the chunk), so all variants do exactly the same work. One process,
one core, A B C D A B C D.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import conditions
import torch
from results import show, spread
from rich.table import Table
from torch import Tensor
from workload import lexicon, model, tokenizer
from works import SMALL, TINY, Work

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.schedule import EngineTurn
from agentgrpo.environments.memory.environment import MemoryEnvironments
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.validity import NoValidity
from agentgrpo.renderers.tags import TagsRenderer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tasks.dialogue import Question, memory_task

SHAPES = {work.name: work for work in (TINY, SMALL)}
INSTRUCTIONS = (0, 400)
"""Approximate tokens of the instructions."""
CHUNKS = 6
MOST_TOKENS = 1536
"""Maximum tokens of a context."""


@dataclass(frozen=True)
class Way:
    """A way to run the episodes. told: the engine knows the number of tokens that all prompts share at their start."""

    together: bool
    told: bool

    @property
    def name(self) -> str:
        return f"{'together' if self.together else 'one by one'}, {'told' if self.told else 'not told'}"


WAYS = tuple(Way(together, told) for told in (True, False) for together in (False, True))


@dataclass(frozen=True)
class Found:
    chunks_per_s: float
    """Chunks per CPU second."""
    prefill_tokens: int
    copied_tokens: int
    episodes: tuple[Episode, ...]


def text(seed: str, words: int) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(lexicon()[:400]) for _ in range(words))


class Dictated(HFEngine):
    """The engine with prescribed turns."""

    def _draw(self, logits: Tensor, turns: Sequence[EngineTurn]) -> tuple[list[int], list[float]]:
        wanted = [self.said(t.key.task_id, t.key.sample_index, t.key.turn)[len(t.logprobs)] for t in turns]
        forced = torch.full_like(logits, -torch.inf)
        rows = torch.arange(len(wanted))
        forced[rows, wanted] = logits[rows, wanted]
        return super()._draw(forced, turns)

    @cache  # noqa: B019 - an engine lives as long as its process
    def said(self, task: str, sample: int, chunk: int) -> tuple[int, ...]:
        name = f"{task}/{sample}/{chunk}"
        inserts = [f"<insert> {text(f'{name}/{i}', 4)}</insert>" for i in range(random.Random(name).randint(1, 2))]
        tok = tokenizer(self._vocab_size)
        return (*tok("".join(inserts))["input_ids"], int(tok.eos_token_id))


class Untold(MemoryEnvironments):
    """Hides the shared opening of the prompts from the engine."""

    shared_opening = 0


def tasks_of(dialogues: int) -> list[Task]:
    question = Question(text=f"{text('question', 2)} ___", answers=("x",))
    return [
        memory_task(
            str(d),
            chunks=[text(f"{d}/{c}", random.Random(f"{d}/{c}").randint(8, 16)) for c in range(CHUNKS)],
            questions=[question],
            data_source="bench",
        )
        for d in range(dialogues)
    ]


def runners_of(shape: Work, instructions: int, slots: int) -> tuple[Dictated, dict[bool, PolicyRunner]]:
    """An engine, and policies in environments that report the shared opening to it and that do not."""
    tok = tokenizer(shape.words)
    engine = Dictated(model=model(shape).eval(), tokenizer=tok, run_seed=0, slots=slots, max_context=MOST_TOKENS)
    words = text("instructions", instructions)
    told = tok.decode(tok(words)["input_ids"][:instructions]) if instructions else None
    renderer = TagsRenderer(tokenizer=tok, tools=SCHEMAS["keyed"].specs)
    runners = {
        is_told: PolicyRunner(
            environment=kind(
                renderer=renderer,
                reader=ClozeReader(),
                validity=NoValidity(),
                schema="keyed",
                instructions=told,
                max_context=None,
            ),
            engine=engine,
            renderer=renderer,
        )
        for is_told, kind in ((True, MemoryEnvironments), (False, Untold))
    }
    return engine, runners


async def run(
    engine: Dictated, runners: dict[bool, PolicyRunner], tasks: list[Task], rollouts: int, way: Way, number: int
) -> Found:
    """Run all episodes once, with nothing cached from the previous run."""
    await engine.load_weights(number)
    before, copied = engine.stats.prefill_tokens, engine.stats.copied_tokens
    runner, sampling = runners[way.told], SamplingParams(max_tokens=100)
    runs = [
        runner.run(task, sample_index=i, stream="train/0", sampling=sampling) for task in tasks for i in range(rollouts)
    ]
    began = time.process_time()
    episodes = await asyncio.gather(*runs) if way.together else [await each for each in runs]
    seconds = time.process_time() - began
    return Found(
        len(episodes) * CHUNKS / seconds,
        engine.stats.prefill_tokens - before,
        engine.stats.copied_tokens - copied,
        tuple(replace(e, timings={}) for e in episodes),
    )


def same_work(found: Sequence[Found]) -> bool:
    """Whether all runs read, wrote and sampled the same; log-probs may differ in their last bits between told and not
    told, because the prompts are computed in different pieces."""
    return len({repr([(e.memory, [b.token_ids for b in e.branches]) for e in f.episodes]) for f in found}) == 1


def measured(shape: Work, episodes: int, instructions: int, rounds: int) -> dict[Way, list[Found]]:
    """`rounds` runs of every way in turn, after one warm-up of each."""
    rollouts = min(8, episodes)
    tasks = tasks_of(max(1, episodes // rollouts))
    engine, runners = runners_of(shape, instructions, episodes)

    async def alternate() -> list[dict[Way, Found]]:
        return [
            {way: await run(engine, runners, tasks, rollouts, way, number) for way in WAYS}
            for number in range(rounds + 1)
        ]

    found = asyncio.run(alternate())[1:]
    if not same_work([f for each in found for f in each.values()]):
        conditions.fail("two ways did different work", 1)
    return {way: [each[way] for each in found] for way in WAYS}


def add_rows(shown: Table, instructions: int, found: dict[Way, list[Found]]) -> None:
    alone = [f.chunks_per_s for f in found[Way(together=False, told=False)]]
    for way in WAYS:
        rates = [f.chunks_per_s for f in found[way]]
        gain = median(a / b for a, b in zip(rates, alone, strict=True))
        counts = (found[way][0].prefill_tokens, found[way][0].copied_tokens)
        shown.add_row(str(instructions), way.name, spread(rates), f"{gain:.2f}", *(f"{n:,}" for n in counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--episodes", type=int, default=32, help="a multiple of 8, or less than 8")
    args = parser.parse_args()
    conditions.require_positive(rounds=args.rounds, episodes=args.episodes)
    conditions.pin()
    torch.set_num_threads(1)
    columns = ("instructions", "way", "chunks per CPU s", "x one by one", "prefilled tokens", "copied tokens")
    shown = Table(*columns, title=f"{args.shape}: {args.episodes} memory episodes of {CHUNKS} chunks")
    for instructions in INSTRUCTIONS:
        add_rows(shown, instructions, measured(SHAPES[args.shape], args.episodes, instructions, args.rounds))
    show(shown)


if __name__ == "__main__":
    main()
