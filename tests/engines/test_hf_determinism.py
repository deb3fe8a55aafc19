"""Not one bit of a token or log-prob may depend on scheduling, batch mix, delays, slots or prompt sharing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch

from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.schedule import Schedule
from tests.engines.tiny import bits, engine, model, play, play_all, tokenizer

EPISODES = [(task, sample) for task in range(3) for sample in range(3)]
ALONE: dict[str, dict[Any, Any]] = {}


async def serial(family: str) -> dict[Any, Any]:
    """Each episode by itself, one after the other."""
    if family not in ALONE:
        backend = engine(model(family))
        ALONE[family] = bits({e: (await play(backend, *e))[1] for e in EPISODES})
    return ALONE[family]


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
async def test_random_schedules(family):
    """One engine after another is given the same episodes in another order, with other delays, slots and budgets."""
    expected = await serial(family)
    for schedule in range(11):
        rng = random.Random(schedule)
        order = rng.sample(EPISODES, rng.choice((4, 9, 9)))
        backend = engine(
            model(family), slots=rng.choice((2, 3, 5, 9, 40)), prefill_budget=rng.choice((1, 20, 60, 2048))
        )

        async def pause(rng: random.Random = rng) -> None:
            for _ in range(rng.choice((0, 0, 1, 3, 12))):
                await asyncio.sleep(0)

        found = bits(await play_all(backend, order, pause=pause))
        assert found == {e: expected[e] for e in order}, schedule
        assert backend._schedule.num_contexts == 0


async def test_prompt_sharing_changes_nothing(monkeypatch):
    expected = await serial("qwen2")
    shared = engine(model("qwen2"))
    assert bits(await play_all(shared, EPISODES)) == expected
    monkeypatch.setattr(Schedule, "_share", lambda *_: None)
    assert bits(await play_all(engine(model("qwen2")), EPISODES)) == expected


@pytest.mark.parametrize("threads", [2, 3])
async def test_the_number_of_threads_changes_nothing(threads):
    expected = await serial("qwen3")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert bits(await play_all(engine(), EPISODES[:5])) == {e: expected[e] for e in EPISODES[:5]}
    finally:
        torch.set_num_threads(before)


async def test_the_run_seed_and_the_stream_change_everything():
    seen = set()
    for run_seed in (1, 2):
        backend = HFEngine(model=model(), tokenizer=tokenizer(), run_seed=run_seed)
        for stream in ("train/0", "train/1"):
            key = SeedKey(stream, "task", 0, 0)
            seen.add((await backend.generate([1, 2, 3], SamplingParams(max_tokens=12), key)).token_ids)
    assert len(seen) == 4


async def test_without_determinism_the_tokens_are_the_same_and_logprobs_close():
    expected = await serial("qwen3")
    found = bits(await play_all(engine(deterministic=False), EPISODES))
    difference = 0.0
    for e in EPISODES:
        for (tokens, logprobs, end), (same_tokens, close, same_end) in zip(expected[e], found[e], strict=True):
            assert (tokens, end) == (same_tokens, same_end)
            difference = max(difference, *(abs(x - y) for x, y in zip(logprobs, close, strict=True)))
    assert 0 < difference < 1e-5
