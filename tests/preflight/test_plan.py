"""What a run is planned to take, against what it takes."""

from __future__ import annotations

import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import LoraSettings, RolloutSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.cache import CacheShape
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.models.loading import config_of, refuse_other_shape, weightless
from agentgrpo.preflight.plan.device import ALWAYS, ROLLOUT, UPDATE, EngineFacts, MemoryPlan, WeightsMemory
from agentgrpo.preflight.plan.parts import model_of
from agentgrpo.preflight.plan.workload import Rate, StepWork, rate_of, seconds
from agentgrpo.run.warm_start import WarmStart
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import DTYPES, Policy, init_policy
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines.tiny import model, tokenizer

SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""Of tests.engines.tiny.model()."""
ENGINE = EngineFacts(slots=8, kv_budget=None, max_context=500)


def plan(made: PreTrainedModel | None = None, **changed: Any) -> MemoryPlan:
    parts: dict[str, Any] = {
        "hardware": Hardware(dtype=changed.pop("dtype", "float32"), strategy=changed.pop("strategy", "ddp")),
        "algorithm": Algorithm(),
        "rollout": RolloutSettings(tasks_per_step=4, group_size=4),
        "engine": ENGINE,
    }
    return MemoryPlan(made or weightless(config_of(SHAPE)), **parts | changed)


def planned(made: MemoryPlan) -> dict[str, tuple[int, str]]:
    return {line.name: (line.num_bytes, line.when) for line in made.lines()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [None, 4])
def test_weights_and_optimizer_state_are_counted_to_the_byte(dtype: str, rank: int | None) -> None:
    real, shape = model().to(DTYPES[dtype]), weightless(config_of(SHAPE))
    for made in (real, shape) if rank else ():
        add_adapter(made, LoraSettings(rank=rank), base="", seed=0)
    found, optimizer = plan(shape, dtype=dtype), AdamW(model=real)
    state = sum(t.numel() * t.element_size() for t in optimizer.state_tensors().values())
    assert found.weights.total == sum(p.numel() for p in real.parameters())
    assert found.weights.trained == sum(p.numel() for p in real.parameters() if p.requires_grad)
    assert found.optimizer_bytes == state
    assert planned(found)["weights"] == (sum(p.numel() * p.element_size() for p in real.parameters()), ALWAYS)
    assert planned(found)["optimizer state"] == (state, ALWAYS)
    assert all(p.device.type == "meta" for p in shape.parameters())


def test_a_checkpoint_is_as_large_on_disk(tmp_path: Path) -> None:
    real = model()
    real.save_pretrained(tmp_path)
    save_file(AdamW(model=real).state_tensors(), tmp_path / "trainer.safetensors")
    size = sum(f.stat().st_size for f in tmp_path.glob("*.safetensors"))
    assert plan().checkpoint_bytes <= size <= 1.02 * plan().checkpoint_bytes  # names and shapes come on top


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("rank", [None, 4])
def test_what_servers_read_is_as_large_on_disk(tmp_path: Path, family: str, rank: int | None) -> None:
    """qwen3 has tied embeddings, which are written as two."""
    real = model(family)
    if rank:
        add_adapter(real, LoraSettings(rank=rank), base="", seed=0)
    PolicyFiles(Policy(model=real, tokenizer=tokenizer()), Alone()).write(tmp_path / "1")
    size = sum(f.stat().st_size for f in (tmp_path / "1").glob("*.safetensors"))
    assert plan(real).sync_bytes <= size <= 1.02 * plan(real).sync_bytes + 8192 * bool(rank)


def test_keys_and_values_are_those_of_the_engines_rooms() -> None:
    room = CacheShape.of(model()).room(512)  # 500 tokens, rounded up
    assert planned(plan())["keys and values"] == (8 * room.numel() * room.element_size(), ROLLOUT)
    limited = plan(engine=EngineFacts(slots=8, kv_budget=1024, max_context=500))
    assert planned(limited)["keys and values"] == (2 * room.numel() * room.element_size(), ROLLOUT)
    assert plan(processes=2).episodes_at_once == 8
    assert plan(processes=4).episodes_at_once == 4


def test_what_is_held_once_more_and_what_is_shared_out() -> None:
    plain, weights = plan(), 4 * plan().weights.total
    assert "reference" not in planned(plain)
    assert planned(plan(algorithm=Algorithm(kl_coef=0.1)))["reference"] == (weights, ALWAYS)
    moving = Algorithm(kl_coef=0.1, reference="ema", reference_decay=0.9)
    assert planned(plan(algorithm=moving))["reference"] == (2 * weights, ALWAYS)
    assert planned(plan(algorithm=Algorithm(max_staleness=1)))["weights of the sampler"] == (weights, ALWAYS)
    shared = planned(plan(strategy="fsdp", processes=4))
    embeddings = 4 * (320 * 64 + 64)
    assert shared["weights"] == (embeddings + (weights - embeddings) // 4, ALWAYS)
    assert shared["gradients"] == (shared["weights"][0], UPDATE)
    assert shared["weights of the sampler"] == (weights, ALWAYS)
    assert planned(plan(strategy="fsdp"))["weights"] == (weights, ALWAYS)


def test_the_most_at_once_is_that_of_one_phase() -> None:
    found = plan()
    sizes = {
        when: sum(line.num_bytes for line in found.lines() if line.when == when) for when in (ALWAYS, ROLLOUT, UPDATE)
    }
    assert found.peak(UPDATE) == sizes[ALWAYS] + sizes[UPDATE]
    assert found.need == sizes[ALWAYS] + max(sizes[ROLLOUT], sizes[UPDATE])
    assert found.fits(int(found.need / 0.9) + 1)
    assert not found.fits(found.need)


STEP = StepWork(episodes=32, turns=5.5, turns_basis="", contexts=5.5, max_tokens=100, max_context=400)
WEIGHTS = WeightsMemory(total=1000, trained=1000, sharded=0, trained_tensors=1, saved=1000, head=200, looked_up=100)


def test_a_steps_tokens_are_bounded() -> None:
    assert (STEP.sampled_tokens, STEP.context_tokens) == (17_600, 70_400)
    assert replace(STEP, turns=100.0).sampled_tokens == 70_400  # no context holds more


def test_every_weight_is_multiplied_with_the_tokens_that_meet_it() -> None:
    body, head = 2 * 700 * 70_400, 2 * 200 * 17_600
    assert STEP.flops(WEIGHTS, recomputed=True, reference=True) == {
        "rollout": body + head,
        "update": 4 * body + 3 * head,
        "reference": body + head,
    }
    adapter = replace(WEIGHTS, trained=0)
    found = STEP.flops(adapter, recomputed=False, reference=False)
    assert found == {"rollout": body + head, "update": 2 * (body + head), "reference": 0.0}


def test_seconds_are_those_of_what_takes_longest() -> None:
    made, rate = plan(), Rate(flops=1e9, trainer_flops=2e9, bandwidth=1e6, basis="")
    step = StepWork(episodes=16, turns=2, turns_basis="", contexts=1, max_tokens=50, max_context=500)
    flops = step.flops(made.weights, recomputed=False, reference=False)
    found = seconds(step, made, rate, recomputed=False, reference=False, servers=0)
    assert found["update"] == flops["update"] / 2e9
    read = made.read_bytes + 8 * 250 * made.kv_token_bytes  # eight slots: two waves of a hundred tokens
    assert found["rollout"] == pytest.approx(flops["rollout"] * 0.8 / 1e9 + 200 * read / 1e6)
    fast = seconds(step, made, replace(rate, bandwidth=1e15), recomputed=False, reference=False, servers=0)
    weights = made.weights.body + made.weights.head
    assert fast["rollout"] == pytest.approx(flops["rollout"] * 0.8 / 1e9 + 200 * 2 * 8 * weights / 1e9)
    servers = seconds(step, made, rate, recomputed=False, reference=False, servers=2)
    read = made.read_bytes + 4 * 250 * made.kv_token_bytes  # eight that are asked at once: four of each, in two waves
    assert servers["rollout"] == pytest.approx(flops["rollout"] * 0.8 / 2e9 + 200 * read / 1e6)
    again = seconds(replace(step, rounds=3), made, rate, recomputed=False, reference=False, servers=0)
    assert again == {**found, "rollout": pytest.approx(3 * found["rollout"])}


def test_what_several_trainers_ask_at_once_their_servers_share() -> None:
    rate = Rate(flops=1e15, trainer_flops=1e15, bandwidth=1e6, basis="")
    step = StepWork(episodes=16, turns=2, turns_basis="", contexts=1, max_tokens=50, max_context=500)

    def rollout(processes: int, servers: int) -> float:
        made = plan(processes=processes)  # of four tasks each has its own, four episodes of each at once
        return seconds(step, made, rate, recomputed=False, reference=False, servers=servers)["rollout"] * 1e6

    made = plan()
    kept, read = 250 * made.kv_token_bytes, made.read_bytes
    assert rollout(1, 1) == pytest.approx(2 * 100 * (read + 8 * kept), rel=1e-6)  # eight at once, twice
    assert rollout(2, 1) == pytest.approx(100 * (read + 16 * kept), rel=1e-6)  # all that they ask at once
    assert rollout(4, 1) == pytest.approx(100 * (read + 16 * kept), rel=1e-6)
    assert rollout(4, 4) == rollout(4, 0) == pytest.approx(100 * (read + 4 * kept), rel=1e-6)


def test_a_stated_rate_is_a_share_of_the_peak() -> None:
    stated = Hardware(device="cuda", dtype="bfloat16", peak_tflops=100.0, bandwidth_gib_s=1000.0)
    assert rate_of(stated, hidden=64, intermediate=96) == Rate(
        flops=0.4e14,
        trainer_flops=0.4e14,
        bandwidth=1000 * 2**30,
        basis="hardware.peak_tflops=100, of which 40% in bfloat16 are counted on, and hardware.bandwidth_gib_s=1000",
    )
    slower = rate_of(replace(stated, dtype="float32"), hidden=64, intermediate=96)
    assert slower is not None
    assert slower.flops == slower.trainer_flops == 0.4e14 / 16
    mixed = rate_of(replace(stated, dtype="float32", mixed_precision="bf16"), hidden=64, intermediate=96)
    assert mixed == Rate(
        flops=0.4e14 / 16,
        trainer_flops=0.4e14,
        bandwidth=1000 * 2**30,
        basis="hardware.peak_tflops=100, of which 2.5% in float32 and 40% in bfloat16 are counted on, and "
        "hardware.bandwidth_gib_s=1000",
    )


def test_this_machine_is_measured() -> None:
    rate = rate_of(Hardware(), hidden=512, intermediate=1024)
    assert rate is not None
    assert rate.basis.startswith("what was measured here just now: ")
    left, right = torch.rand(512, 512), torch.rand(512, 1024)
    fastest = min(timeit.repeat(lambda: left @ right, number=20, repeat=5)) / 20
    assert rate.flops < 5 * 2 * 512 * 512 * 1024 / fastest  # two measurements of one machine, whatever else it does
    assert rate.flops > 1e8


def test_a_shape_is_checked_against_the_folder(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    refuse_other_shape(tmp_path, SHAPE)
    refuse_other_shape(tmp_path, None)
    with pytest.raises(ConfigError, match=r"model\.shape\.head_dim=16, but the model in .* has head_dim=32; choose"):
        refuse_other_shape(tmp_path, SHAPE | {"head_dim": 16})
    refuse_other_shape(tmp_path, SHAPE | {"max_position_embeddings": 256})  # it is good for more
    with pytest.raises(ConfigError, match=r"model\.shape\.max_position_embeddings=1024, but .* has .*=512"):
        refuse_other_shape(tmp_path, SHAPE | {"max_position_embeddings": 1024})
    with pytest.raises(ConfigError, match=r"model\.shape\.hiden_size: a qwen3 has no such key.*mean 'hidden_size'"):
        config_of({"model_type": "qwen3", "hiden_size": 3})
    with pytest.raises(ConfigError, match=r"model_type=qwen99: transformers has no such model"):
        config_of({"model_type": "qwen99"})


def test_a_warm_started_model_is_the_one_it_will_be() -> None:
    part = WarmStart(vocab_size=len(tokenizer()))
    made = init_policy(tokenizer=tokenizer())
    shape, _ = model_of(part, seed=0)
    assert [(n, p.shape) for n, p in shape.named_parameters()] == [
        (n, p.shape) for n, p in made.model.named_parameters()
    ]
