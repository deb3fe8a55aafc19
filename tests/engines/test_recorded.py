"""Decoding by recorded steps gives what the engine gives without, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import EngineError
from agentgrpo.engines import recorded
from agentgrpo.engines import recorded as rows
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.recorded import CudaGraphs
from agentgrpo.training.adapters import add_adapter
from tests.engines.tape import Tapes, Watched, record_as_on_a_gpu
from tests.engines.test_hf_determinism import storm
from tests.engines.tiny import engine, model, plain_logprobs, prompt

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
DEVICES = ["cpu", CUDA]
EPISODES = [(task, sample) for task in range(3) for sample in range(3)]
Played = dict[tuple[int, int], list[Completion]]


@pytest.fixture(autouse=True)
def short_lengths(monkeypatch):
    """Several of them in a tiny model's context."""
    monkeypatch.setattr(rows, "LEAST_LENGTH", 16)
    record_as_on_a_gpu(monkeypatch)


def plain(policy: PreTrainedModel, **settings: Any) -> HFEngine:
    return engine(policy, deterministic=False, cuda_graphs=False, **settings)


def recording(policy: PreTrainedModel, *, slots: int = 128, **settings: Any) -> tuple[HFEngine, Watched]:
    """The engine as it is on a GPU; on a CPU a recorder stands in for CUDA's."""
    backend = engine(policy, deterministic=False, slots=slots, **settings)
    watched = Watched(CudaGraphs() if policy.device.type == "cuda" else Tapes())
    backend._recorded = watched.decoding = backend._recorded_with(watched, slots)
    return backend, watched


async def wander(backend: HFEngine, task: int, sample: int, *, timing: random.Random | None) -> list[Completion]:
    """An episode whose context grows, loses its end and starts anew, which depends on the episode only; turns that are
    cancelled and tried again and steps in between, which depend on `timing`."""
    rng = random.Random(100 * task + sample)
    context, completions = prompt(task), []
    key = SeedKey("train/0", f"task-{task}", sample, 0)
    for turn in range(5):
        sampling = SamplingParams(max_tokens=rng.choice((1, 6, 30)))
        for _ in range(timing.choice((0, 0, 1, 5)) if timing else 0):
            await asyncio.sleep(0)
        if timing and timing.random() < 0.3:
            broken = asyncio.ensure_future(backend.generate(context, sampling, key._replace(turn=turn)))
            for _ in range(timing.choice((1, 4, 9))):
                await asyncio.sleep(0)
            broken.cancel()
            with suppress(asyncio.CancelledError):
                await broken
        completions.append(await backend.generate(context, sampling, key._replace(turn=turn)))
        context = [*context, *completions[-1].token_ids]
        context = context[: len(context) - rng.choice((0, 0, 0, 3, 12))] or context
        context = [*context, *(rng.randrange(256) for _ in range(rng.choice((0, 1, 8, 20))))]
        if rng.random() < 0.15:
            context = prompt(task)
    backend.release(key)
    return completions


async def wander_all(backend: HFEngine, timing: random.Random | None, episodes=tuple(EPISODES)) -> Played:
    played = await asyncio.gather(*(wander(backend, *e, timing=timing) for e in episodes))
    return dict(zip(episodes, played, strict=True))


def same(found: Played, expected: Played) -> None:
    for e, completions in found.items():
        alike(completions, expected[e])


def alike(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """The tokens are the same, the log-probs within 1e-5."""
    for a, b in zip(found, expected, strict=True):
        assert (a.token_ids, a.finish_reason) == (b.token_ids, b.finish_reason)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


FEW, MANY = (2, [20, 2, 200, 1, 1]), (5, [300, 25, 2000, 20, 8])
"""Of random schedules, and how often there must be what they are drawn for."""


@pytest.mark.parametrize(
    ("family", "schedules", "least"),
    [("qwen3", *FEW), *(pytest.param(f, *MANY, marks=pytest.mark.slow) for f in ("qwen3", "qwen2", "llama"))],
)
@pytest.mark.parametrize("device", DEVICES)
async def test_random_schedules(monkeypatch, family, schedules, least, device):
    policy = model(family).to(device)
    expected = await wander_all(plain(policy, max_context=256), None)
    assert len({c.token_ids for cs in expected.values() for c in cs}) > 30
    seen = torch.zeros(5)
    for seed in range(schedules):
        rng = random.Random(f"{family}/{seed}")
        monkeypatch.setattr(recorded, "LEAST_BESIDE", (1, 2, 99)[seed % 3])
        backend, watched = recording(
            policy,
            slots=rng.choice((1, 2, 3, 5, 40)),
            max_context=256,
            prefill_budget=rng.choice((20, 2048)),
            kv_budget=rng.choice((None, 256, 320, 512)),
        )
        stormy = asyncio.ensure_future(storms(backend, rng)) if rng.random() < 0.4 else None
        same(await wander_all(backend, rng, tuple(rng.sample(EPISODES, rng.choice((2, 5, 9))))), expected)
        if stormy:
            stormy.cancel()
        stats = backend.stats
        assert 0 < stats.graph_steps == len(watched.keys) < stats.steps
        assert stats.graph_captures == watched.captures >= len(set(watched.keys))
        assert not backend._recorded._rows._seated()
        found = [stats.graph_steps, len(set(watched.keys)), stats.moved_tokens, stats.evictions, watched.forgotten]
        seen += torch.tensor(found)
    assert (seen > torch.tensor(least)).all(), seen


async def storms(backend: HFEngine, rng: random.Random) -> None:
    while True:
        storm(backend, rng)
        await asyncio.sleep(0)


@pytest.mark.parametrize("device", DEVICES)
async def test_what_is_copied_recorded_and_computed_is_what_must_be(device):
    backend, watched = recording(model("qwen2").to(device))
    sampling = SamplingParams(max_tokens=40)
    keys = [SeedKey("train/0", f"task-{i}", 0, 0) for i in range(3)]
    prompts = [[i] * 30 for i in range(3)]
    first = await asyncio.gather(*(backend.generate(p, sampling, k) for p, k in zip(prompts, keys, strict=True)))
    assert (backend.stats.steps, backend.stats.graph_steps) == (40, 39)
    assert watched.keys == [(4, 32)] * 2 + [(4, 48)] * 16 + [(4, 64)] * 16 + [(4, 96)] * 5
    assert (watched.captures, watched.forgotten) == (4, 2)  # at the first step, and when 64 tokens were outgrown
    assert backend.stats.moved_tokens == 3 * 30 + 3 * 64
    assert backend.stats.row_tokens == 4 * 128
    contexts = [[*p, *c.token_ids, *[9] * 20] for p, c in zip(prompts, first, strict=True)]
    turns = (backend.generate(c, sampling, k._replace(turn=1)) for c, k in zip(contexts, keys, strict=True))
    await asyncio.gather(*turns)
    assert backend.stats.moved_tokens == 3 * 30 + 3 * 64 + 3 * 128  # spans are written where the caches are
    assert (backend.stats.graph_steps, backend.stats.replayed_tokens) == (2 * 39, 0)


async def follows(backend: HFEngine, policy: PreTrainedModel, version: int) -> None:
    """Once it has been told of new weights it samples from these."""
    await backend.load_weights(version)
    key, sampling = SeedKey("train/0", "task", 0, 0), SamplingParams(max_tokens=9)
    expected = await plain(policy).generate([1, 2, 3], sampling, key)
    alike([await backend.generate([1, 2, 3], sampling, key)], [expected])


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("device", DEVICES)
async def test_recordings_outlive_new_weights(device, own_weights, lora):
    policy = model("qwen2").to(device)
    if lora:
        add_adapter(policy, LoraSettings(rank=4), base="base", seed=0)
    backend, watched = recording(policy, own_weights=own_weights)
    await follows(backend, policy, 0)
    captures = watched.captures
    for version in (1, 2):
        with torch.no_grad():
            for p in policy.parameters():
                p += 0.05 * p.requires_grad
        await follows(backend, policy, version)
    assert watched.captures == captures == 1
    assert backend.stats.graph_steps == 3 * 8


@pytest.mark.parametrize("device", DEVICES)
async def test_nothing_recorded_outlives_weights_that_moved(device):
    policy = model("qwen2").to(device)
    backend, watched = recording(policy)
    await follows(backend, policy, 0)
    with torch.no_grad():
        policy.lm_head.weight = torch.nn.Parameter(policy.lm_head.weight * -1)
    await follows(backend, policy, 1)
    assert watched.captures == 2


async def test_in_bfloat16_the_logprobs_are_near():
    policy, sampling = model("qwen2").bfloat16(), SamplingParams(max_tokens=30)
    backend, watched = recording(policy)
    keys = [SeedKey("train/0", f"task-{i}", 0, 0) for i in range(3)]
    played = await asyncio.gather(*(backend.generate([i] * 20, sampling, keys[i]) for i in range(3)))
    assert len(watched.keys) == 29
    for i, completion in enumerate(played):
        scored = plain_logprobs(policy, [*[i] * 20, *completion.token_ids])
        assert completion.logprobs == pytest.approx(scored[-30:], abs=0.1)


async def test_what_is_not_finite_leaves_nothing_behind():
    """The next episode gets the same row."""
    policy, key, sampling = model("qwen2"), SeedKey("train/0", "task", 0, 0), SamplingParams(max_tokens=5)
    backend, _ = recording(policy)
    expected = await backend.generate([1] * 20, sampling, key)
    backend.release(key)
    weight = policy.model.embed_tokens.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[expected.token_ids[1]] = torch.nan
    with pytest.raises(EngineError, match="not finite"):
        await backend.generate([1] * 20, sampling, key)
    assert backend._recorded._rows.kv.isnan().any()
    with torch.no_grad():
        weight.copy_(kept)
    again = await backend.generate([1] * 20, sampling, key)
    assert (again.token_ids, again.logprobs) == (expected.token_ids, expected.logprobs)


async def test_after_an_error_in_a_recorded_step_the_engine_goes_on(monkeypatch):
    policy, key, sampling = model("qwen2"), SeedKey("train/0", "task", 0, 0), SamplingParams(max_tokens=20)
    backend, watched = recording(policy)
    expected = await plain(policy).generate([1] * 20, sampling, key)
    replay, calls = watched.replay, []

    def broken(recorded_key, run):
        calls.append(recorded_key)
        if len(calls) == 4:
            backend._recorded._rows.kv.fill_(99.0)
            raise RuntimeError("out of memory")
        replay(recorded_key, run)

    monkeypatch.setattr(watched, "replay", broken)
    with pytest.raises(EngineError, match="out of memory"):
        await backend.generate([1] * 20, sampling, key)
    alike([await backend.generate([1] * 20, sampling, key)], [expected])


@pytest.mark.parametrize(("least", "beside"), [(2, 5), (3, 0)])
@pytest.mark.parametrize("device", DEVICES)
async def test_two_go_on_decoding_while_the_prompt_of_a_third_is_computed(monkeypatch, device, least, beside):
    """Five of its steps, the last of which draws; then there are nine in which it decodes."""
    monkeypatch.setattr(recorded, "LEAST_BESIDE", least)
    policy, keys = model("qwen2").to(device), [SeedKey("train/0", f"task-{i}", 0, 0) for i in range(3)]
    backend, watched = recording(policy, prefill_budget=20, prefill_chunk=20)
    sampling = SamplingParams(max_tokens=40)
    early = [asyncio.ensure_future(backend.generate([i] * 9, sampling, keys[i])) for i in range(2)]
    for _ in range(6):
        await asyncio.sleep(0)
    alone = backend.stats.steps - backend.stats.graph_steps
    assert (alone, backend.stats.graph_steps > 0) == (1, True)
    late = await backend.generate([7] * 99, SamplingParams(max_tokens=10), keys[2])
    found = [*await asyncio.gather(*early), late]
    assert backend.stats.graph_steps == backend.stats.steps - alone - (5 - beside)
    other = plain(policy, prefill_budget=20, prefill_chunk=20)
    expected = [await other.generate([i] * 9, sampling, keys[i]) for i in range(2)]
    expected.append(await other.generate([7] * 99, SamplingParams(max_tokens=10), keys[2]))
    alike(found, expected)
    assert {rows for rows, _ in watched.keys} == {2, 4}


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({"deterministic": False}, True),
        ({"deterministic": False, "cuda_graphs": False}, False),
        ({"deterministic": True}, False),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
async def test_when_steps_are_recorded(settings, recorded, device):
    backend = engine(model("qwen2").to(device), **settings)
    await backend.generate([1, 2, 3], SamplingParams(max_tokens=9), SeedKey("train/0", "task", 0, 0))
    assert backend.stats.steps == 9
    assert backend.stats.graph_steps == (8 if recorded and device == "cuda" else 0)


class Refuses(CudaGraphs):
    def _warm_up(self, run: Any) -> None:
        run()

    def _capture(self, run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")


async def test_a_model_that_cannot_be_recorded_runs_all_the_same():
    policy, key, sampling = model("qwen2"), SeedKey("train/0", "task", 0, 0), SamplingParams(max_tokens=9)
    backend = engine(policy, deterministic=False)
    backend._recorded = backend._recorded_with(Refuses(), 128)
    with pytest.warns(RuntimeWarning, match=r"1 rows and 16 keys could not be recorded .*engine\.cuda_graphs=false"):
        found = await backend.generate([1, 2, 3], sampling, key)
    alike([found], [await plain(policy).generate([1, 2, 3], sampling, key)])
    assert (backend.stats.graph_steps, backend.stats.graph_captures) == (8, 0)
