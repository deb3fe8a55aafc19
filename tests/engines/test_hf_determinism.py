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
from tests.engines.tiny import bits, engine, model, play, play_all, play_chunks, tokenizer
from tests.thorough import siblings

EPISODES = [(task, sample) for task in range(3) for sample in range(3)]
CHUNKS = {"qwen3": 512, "qwen2": 16, "llama": 11}
"""The bits may depend on the size of a piece; one for each family of models."""
ALONE: dict[str, dict[Any, Any]] = {}


def short(family: str, **settings: Any) -> HFEngine:
    return engine(model(family), prefill_chunk=CHUNKS[family], max_context=256, **settings)


async def serial(family: str) -> dict[Any, Any]:
    """Each episode by itself, one after the other."""
    if family not in ALONE:
        backend = short(family)
        ALONE[family] = bits({e: (await play(backend, *e))[1] for e in EPISODES})
        assert backend.stats.evictions == 0
    return ALONE[family]


def storm(backend: HFEngine, rng: random.Random) -> None:
    """Evict what nobody asked for."""
    for context in list(backend._schedule._memory.contexts):
        if rng.random() < 0.1:
            backend._schedule.evict(context)


@pytest.mark.parametrize("schedules", [6, pytest.param(67, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", siblings(["qwen3", "qwen2", "llama"], quick=1))
async def test_random_schedules(family, schedules):
    """One engine after another is given some of the same episodes in another order, with other delays, slots and
    budgets, and has to evict or is made to."""
    expected = await serial(family)
    evictions = replayed = 0
    for schedule in range(schedules):
        rng = random.Random(schedule)
        order = rng.sample(EPISODES, rng.choice((2, 2, 3, 3, 7)))
        backend = short(
            family,
            slots=rng.choice((1, 2, 3, 5, 40)),
            prefill_budget=rng.choice((1, 20, 60, 2048)),
            kv_budget=rng.choice((None, 256, 320, 512)),
        )
        stormy = rng.random() < 0.3

        async def pause(rng: random.Random = rng, backend: HFEngine = backend, stormy: bool = stormy) -> None:
            for _ in range(rng.choice((0, 0, 1, 3, 12))):
                await asyncio.sleep(0)
                if stormy:
                    storm(backend, rng)

        found = bits(await play_all(backend, order, pause=pause))
        assert found == {e: expected[e] for e in order}, schedule
        assert backend._schedule.num_contexts == backend._schedule._memory.tokens == 0
        evictions += backend.stats.evictions
        replayed += backend.stats.replayed_tokens
    assert evictions > 3 * schedules
    assert replayed > 30 * schedules


async def test_prompt_sharing_changes_nothing(monkeypatch):
    expected = await serial("qwen2")
    shared = short("qwen2")
    assert bits(await play_all(shared, EPISODES)) == expected
    assert shared.stats.copied_tokens == 2 * (8 + 15 + 22)
    can_go_on = Schedule._can_go_on

    def alone(self: Schedule, *args: Any) -> bool:
        self._lenders.clear()
        self._starting.clear()
        return can_go_on(self, *args)

    monkeypatch.setattr(Schedule, "_can_go_on", alone)
    apart = short("qwen2")
    assert bits(await play_all(apart, EPISODES)) == expected
    assert apart.stats.copied_tokens == 0


@pytest.mark.parametrize(("schedules", "evicted"), [(4, 4), pytest.param(40, 100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", siblings(["qwen3", "qwen2", "llama"], quick=1))
async def test_fresh_prompts_with_a_common_opening_in_random_schedules(family, schedules, evicted):
    """The opening is computed by one, kept from chunk to chunk and copied by others, of other groups too."""
    alone = short(family)
    expected = bits({e: (await play_chunks(alone, *e, opening=40))[1] for e in EPISODES})
    assert alone.stats.copied_tokens == 0
    evictions = copied = 0
    for schedule in range(schedules):
        rng = random.Random(schedule)
        order = rng.sample(EPISODES, rng.choice((2, 3, 7)))
        backend = short(
            family,
            slots=rng.choice((1, 2, 5, 40)),
            prefill_budget=rng.choice((1, 20, 60, 2048)),
            kv_budget=rng.choice((None, 256, 320, 512)),
        )
        stormy = rng.random() < 0.3

        async def pause(rng: random.Random = rng, backend: HFEngine = backend, stormy: bool = stormy) -> None:
            for _ in range(rng.choice((0, 0, 1, 3, 12))):
                await asyncio.sleep(0)
                if stormy:
                    storm(backend, rng)

        found = bits(await play_all(backend, order, episode=play_chunks, opening=40, pause=pause))
        assert found == {e: expected[e] for e in order}, schedule
        assert (backend._schedule._lenders, backend._schedule._starting) == ({}, {})
        evictions += backend.stats.evictions
        copied += backend.stats.copied_tokens
    assert evictions > evicted
    assert copied > 40 * schedules


async def test_a_common_opening_is_computed_once_and_never_again():
    told, untold = short("qwen3"), short("qwen3")
    expected = bits(await play_all(untold, EPISODES, episode=play_chunks))
    found = bits(await play_all(told, EPISODES, episode=play_chunks, opening=40))
    assert [[c[0] for c in found[e]] for e in EPISODES] == [[c[0] for c in expected[e]] for e in EPISODES]
    pairs = [(a[1], b[1]) for e in EPISODES for a, b in zip(found[e], expected[e], strict=True)]
    assert max(abs(x - y) for pair in pairs for x, y in zip(*pair, strict=True)) < 1e-5
    # of a group the first two prompts are equal; the last token of each is decoded
    chunks = [12 + 5 * task for task in range(3)]
    beyond = sum(2 * (n - 1) + 3 * (4 + n - 1) + 3 * (12 + n - 1) for n in chunks)
    assert told.stats.prefill_tokens == 40 + beyond
    assert told.stats.copied_tokens == 40 * (len(EPISODES) - 1) + sum(2 * 2 * (n - 1) for n in chunks)
    assert untold.stats.prefill_tokens == 40 * (2 + 2 * 3) * 3 + beyond


async def test_many_rows_in_one_call_have_the_bits_of_each_alone_too():
    """What runs where calls are dear: exact as well, though with other bits."""

    def batched() -> HFEngine:
        backend = short("qwen2", kv_budget=320)
        backend._shape = backend._shape._replace(in_place=False)
        return backend

    one = batched()
    expected = bits({e: (await play(one, *e))[1] for e in EPISODES})
    assert bits(await play_all(batched(), EPISODES)) == expected
    in_place = await serial("qwen2")
    assert [[c[0] for c in expected[e]] for e in EPISODES] == [[c[0] for c in in_place[e]] for e in EPISODES]


async def test_a_span_in_one_piece_has_the_same_bits_alone_and_in_company():
    """Eight tokens fill the packed row alone: nothing in it but the span."""
    backend = engine()
    alone = await two_turns(backend, 0)
    together = await asyncio.gather(*(two_turns(backend, i) for i in range(3)))
    assert together[0] == alone


async def two_turns(backend: HFEngine, sample: int) -> list[Any]:
    key = SeedKey("train/0", "task", sample, 0)
    first = await backend.generate([3, 1, 4], SamplingParams(max_tokens=4), key)
    context = [3, 1, 4, *first.token_ids, *range(50, 57)]
    second = await backend.generate(context, SamplingParams(max_tokens=4), key._replace(turn=1))
    backend.release(key)
    return [(c.token_ids, c.logprobs) for c in (first, second)]


@pytest.mark.parametrize("threads", [2, pytest.param(3, marks=pytest.mark.slow)])
async def test_the_number_of_threads_changes_nothing(threads):
    expected = await serial("qwen3")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert bits(await play_all(short("qwen3"), EPISODES[:5])) == {e: expected[e] for e in EPISODES[:5]}
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
    backend, rng = engine(deterministic=False), random.Random(0)

    async def pause() -> None:
        storm(backend, rng)

    found = bits(await play_all(backend, EPISODES, pause=pause))
    assert backend.stats.replayed_tokens > 100
    difference = 0.0
    for e in EPISODES:
        for (tokens, logprobs, end), (same_tokens, close, same_end) in zip(expected[e], found[e], strict=True):
            assert (tokens, end) == (same_tokens, same_end)
            difference = max(difference, *(abs(x - y) for x, y in zip(logprobs, close, strict=True)))
    assert 0 < difference < 1e-5
