"""Measure models of real shapes on an accelerator: rollout, update and memory, compared with the model's own forward
and `generate`.

    python scripts/bench/gpu.py                              shapes 0.5b and 7b (Qwen2.5's), bf16, on cuda
    python scripts/bench/gpu.py --shape tiny --device cpu    the same code on any machine

Weights are random and created on the device; lengths are prescribed, so nothing depends on the sampled tokens. The
bench measures steps of three turns with tool calls, the floor of their rollouts (floor.py), and the same single-turn
rollout with our engine and with transformers' `generate` on the same model, A B A B. The engine runs in
non-deterministic mode, so on cuda its decode steps are replayed from CUDA graphs; the single-turn rollout is measured
without graphs as well, in the same alternation. A CPU has no graphs: both columns measure the same engine. A shape that
does not fit is skipped with a line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import conditions
import torch
from floor import Round, one_round
from forwards import clock_of
from measure import Now, peak_rss_mb
from ours import ScriptedHFEngine, learn, parts_of
from results import show
from rich.table import Table
from schedules import ObservedEngine
from scripted_logits import ScriptedLogits
from transformers import LogitsProcessorList
from workload import Script, model, prompt_text
from works import TINY, Work

from agentgrpo.config.settings import RunSettings
from agentgrpo.run.parts import Parts
from agentgrpo.run.train import roll_out
from agentgrpo.training.canary import refuse_stale_weights

LARGE = Work(
    "large", hidden=0, layers=0, heads=0, kv_heads=0, ffn=0, vocab=151_936, words=8192, tasks=8, group_size=16,
    prompt_tokens=512, least_tokens=128, most_tokens=256, tool_tokens=300,
)  # fmt: skip
SHAPES = {
    "tiny": replace(TINY, tasks=2, group_size=4),
    "0.5b": replace(LARGE, name="0.5b", hidden=896, layers=24, heads=14, kv_heads=2, ffn=4864),
    "7b": replace(
        LARGE, name="7b", hidden=3584, layers=28, heads=28, kv_heads=4, ffn=18_944, vocab=152_064, tied=False
    ),
}
GIB = 2**30
WORKING_SPACE = 6 * GIB
"""A generous allowance for activations and logits of one micro-batch."""


@dataclass(frozen=True)
class StepTimes:
    """One step of three turns, in seconds."""

    floor: Round
    """The rollout and its floor."""
    train: float
    sampled: int

    @property
    def step(self) -> float:
        return self.floor.rollout + self.train


def needed_bytes(work: Work, dtype: torch.dtype) -> int:
    """Weights, gradients and two moments in `dtype`, keys and values of all episodes, and working space."""
    weights = sum(p.numel() for p in model(work, dtype=dtype, device="meta").parameters())
    per_token = 2 * work.layers * work.kv_heads * (work.hidden // work.heads)
    numbers = 4 * weights + work.rows * work.max_context * per_token
    return numbers * dtype.itemsize + (WORKING_SPACE if work.hidden > TINY.hidden else 0)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def peak_gib(device: torch.device) -> float:
    """Peak of the device's memory since `release`, with the floor's own keys and values; on a CPU, of the process's
    memory.
    """
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else peak_rss_mb() / 1024


async def timed_step(parts: Parts, step: int, now: Now) -> StepTimes:
    """Run one step like the training loop, and measure the floor of its rollout in between."""
    found, rolled = await one_round(parts, step)
    began = now()
    tags = learn(parts, step, rolled)
    await parts.engine.load_weights(step + 1)
    await refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, step)
    return StepTimes(found, now() - began, int(tags["tokens/sampled"]))


def steps_of(work: Work, steps: int, dtype: torch.dtype, device: torch.device, *, graphs: bool) -> list[StepTimes]:
    """Run `steps` steps after one warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunSettings(dir=folder, max_steps=steps + 1)
        parts = parts_of(
            work,
            run,
            engine_type=ObservedEngine,
            dtype=dtype,
            device=str(device),
            deterministic=False,
            cuda_graphs=graphs,
        )

        async def all_steps() -> list[StepTimes]:
            return [await timed_step(parts, step, clock_of(device)) for step in range(steps + 1)]

        return asyncio.run(all_steps())[1:]


def generate(policy: Any, script: Script, questions: Sequence[str], step: int) -> None:
    """Run the single-turn rollout of a step with `generate`."""
    texts = [prompt_text(q, with_tools=False) for q in questions for _ in range(script.work.group_size)]
    prompts = script.tokenizer(texts, padding=True, return_tensors="pt").to(policy.device)
    scripted = LogitsProcessorList([ScriptedLogits(script, step, 0)])
    with torch.inference_mode():
        policy.generate(
            **prompts,
            max_new_tokens=script.work.most_tokens,
            do_sample=True,
            top_k=0,
            logits_processor=scripted,
        )


def without_graphs(parts: Parts, script: Script) -> Parts:
    """Return the parts with an engine that replays no graphs."""
    policy, engine = parts.trainer.policy, parts.engine
    assert isinstance(engine, ScriptedHFEngine)
    plain = ScriptedHFEngine(
        script,
        model=policy.model,
        tokenizer=policy.tokenizer,
        run_seed=0,
        max_context=script.work.max_context,
        slots=script.work.rows,
        deterministic=False,
        cuda_graphs=False,
    )
    plain.row_of = engine.row_of
    return replace(parts, engine=plain, runner=replace(parts.runner, engine=plain))


def tokens_per_second(
    work: Work, rounds: int, dtype: torch.dtype, device: torch.device, *, graphs: bool
) -> dict[str, list[float]]:
    """Tokens per second of our engine ("graphs", if requested, and "plain") and of `generate` on one turn of `work`,
    after a warm-up round."""
    single, now = replace(work, turns=1), clock_of(device)
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = RunSettings(dir=folder, max_steps=rounds + 1)
        parts = parts_of(single, run, dtype=dtype, device=str(device), deterministic=False, cuda_graphs=graphs)
        script = Script(single)
        engines = {"graphs": parts, "plain": without_graphs(parts, script)} if graphs else {"plain": parts}

        async def alternate(step: int) -> None:
            questions = [task.question for task in parts.order.take(step)]
            sampled = sum(len(script.forced(step, row, 0)) for row in range(single.rows))
            for name, of_engine in engines.items():
                await of_engine.engine.load_weights(step)
                began = now()
                await roll_out(of_engine, step)
                speeds.setdefault(name, []).append(sampled / (now() - began))
            began = now()
            generate(parts.trainer.policy.model, script, questions, step)
            speeds.setdefault("generate", []).append(sampled / (now() - began))

        for step in range(rounds + 1):
            asyncio.run(alternate(step))
    return {name: found[1:] for name, found in speeds.items()}


def release(device: torch.device) -> None:
    """Free the memory of the last model."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def columns(*, graphs: bool) -> tuple[str, ...]:
    names = ("shape", "tokens/s", "of floor", "of bound", "step, s", "update, s", "peak GiB")
    names += ("tokens/s, 1 turn", "generate", "ratio")
    return (*names, "no graphs", "ratio") if graphs else names


def row(work: Work, rounds: int, dtype: torch.dtype, device: torch.device, *, graphs: bool) -> tuple[str, ...]:
    """Measure one shape; return cells for `columns`."""
    release(device)
    steps = steps_of(work, rounds, dtype, device, graphs=graphs)
    memory = peak_gib(device)
    release(device)
    speeds = {n: median(s) for n, s in tokens_per_second(work, rounds, dtype, device, graphs=graphs).items()}
    ours = speeds["graphs" if graphs else "plain"]
    rollouts = [s.floor for s in steps]
    return (
        work.name,
        f"{median(s.sampled / s.floor.rollout for s in steps):,.0f}",
        f"{median(r.fraction for r in rollouts):.2f}",
        f"{median(r.bound / r.rollout for r in rollouts):.2f}",
        f"{median(s.step for s in steps):.2f}",
        f"{median(s.train for s in steps):.2f}",
        f"{memory:.1f}",
        f"{ours:,.0f}",
        f"{speeds['generate']:,.0f}",
        f"{ours / speeds['generate']:.2f}",
        *((f"{speeds['plain']:,.0f}", f"{ours / speeds['plain']:.2f}") if graphs else ()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["0.5b", "7b"], choices=list(SHAPES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="engine.cuda_graphs=false throughout")
    args = parser.parse_args()
    conditions.require_positive(rounds=args.rounds)
    if args.device == "cuda" and not torch.cuda.is_available():
        conditions.fail("device cuda was given; torch finds none here; --shape tiny --device cpu runs anywhere")
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    shown = Table(*columns(graphs=args.graphs), title=f"{name}, {dtype}: medians of {args.rounds}")
    for shape in args.shape:
        need, free = needed_bytes(SHAPES[shape], dtype), free_bytes(device)
        if need > free:
            show(f"{shape}: skipped, it needs about {need / GIB:.0f} GiB and {free / GIB:.0f} GiB are free")
            continue
        shown.add_row(*row(SHAPES[shape], args.rounds, dtype, device, graphs=args.graphs))
    if shown.row_count:
        show(shown)


if __name__ == "__main__":
    main()
