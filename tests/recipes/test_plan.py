"""What a run is planned to take, against what it takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentgrpo.cli import main
from agentgrpo.dry_run import model_of
from agentgrpo.engines.cache import CacheShape
from agentgrpo.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.hardware import Hardware
from agentgrpo.recipes.plan import ALWAYS, GIB, ROLLOUT, UPDATE, EngineFacts, MemoryPlan, StepPlan, Weights
from agentgrpo.recipes.shape import config_of, refuse_other_shape, weightless
from agentgrpo.recipes.warm_start import WarmStart
from agentgrpo.settings import LoraSettings, RolloutSettings
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import DTYPES, init_policy
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


def test_a_steps_tokens_are_bounded() -> None:
    step = StepPlan(episodes=32, turns=5.5, turns_basis="", contexts=5.5, max_tokens=100, max_context=400)
    weights = Weights(total=1000, trained=1000, sharded=0, trained_tensors=1, saved=1000)
    assert (step.sampled_tokens, step.context_tokens) == (17_600, 70_400)
    assert step.flops(weights, recomputed=True, reference=False) == {
        "rollout": 2000 * 70_400.0,
        "update": 8000 * 70_400.0,
        "reference": 0.0,
    }


def test_a_shape_is_checked_against_the_folder(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    refuse_other_shape(tmp_path, SHAPE)
    refuse_other_shape(tmp_path, None)
    with pytest.raises(ConfigError, match=r"model\.shape\.head_dim=16, but the model in .* has head_dim=32; choose"):
        refuse_other_shape(tmp_path, SHAPE | {"head_dim": 16})
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


# -- run.dry_run=true


def dry_run(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    before = sorted(Path().rglob("*"))
    assert main(["train", *settings, "run.dry_run=true"]) == 0
    assert sorted(Path().rglob("*")) == before
    return capsys.readouterr().out


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("elsewhere")
def test_the_published_run_is_planned_without_weights_and_network(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "experiment=mem_alpha_paper")
    assert "model (model.shape): 4,022,468,096 parameters, 4,022,468,096 of them trained; bfloat16" in text
    assert "episodes: 256 = 32 tasks x 8 attempts (exact)" in text
    assert "205 steps: 52,480 episodes" in text
    assert "memory of one device, 4 processes, fsdp:" in text
    assert "engine.kv_budget=262,144 tokens; 64 contexts of 32,768 tokens, 4.5 GiB each" in text
    assert "  fits: 80.00 GiB (hardware.memory_gib)" in text
    kept = 4_022_468_096 * (2 + 12)
    assert f"a checkpoint: {kept / GIB:.2f} GiB of tensors (exact)" in text


@pytest.mark.usefixtures("elsewhere")
def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "experiment=mem_alpha_paper", "hardware=single_gpu", "hardware.memory_gib=40")
    assert "memory of one device, 1 process, ddp:" in text
    assert "  DOES NOT FIT: 40.00 GiB (hardware.memory_gib)" in text


@pytest.mark.usefixtures("elsewhere")
def test_chunks_are_counted_where_the_data_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "experiment=memory", "task.train_diaries=20", "task.train_days=[5,5]")
    assert "turns of an episode: 5 (chunks of 20 tasks, counted: 5 to 5)" in text
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    assert f"fits: {memory:.2f} GiB (this machine)" in text


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_gives_its_own_shape(capsys: pytest.CaptureFixture[str]) -> None:
    model().save_pretrained("m")
    capsys.readouterr()
    text = dry_run(capsys, "experiment=none", "model.path=m", "task.questions=q", "task.corpus=c")
    assert f"{sum(p.numel() for p in model().parameters()):,} parameters" in text
    assert json.loads(Path("m/config.json").read_text())["model_type"] == "qwen3"


@pytest.mark.usefixtures("elsewhere")
def test_no_shape_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["experiment=none", "model.path=nowhere", "task.questions=q", "task.corpus=c", "run.dry_run=true"]
    assert main(["train", *settings]) == 2
    assert capsys.readouterr().err.startswith("agentgrpo: run.dry_run=true: ")


@pytest.mark.usefixtures("elsewhere")
def test_an_evaluation_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    model().save_pretrained("m")
    capsys.readouterr()
    assert main(["eval", "--ckpt", "m", "run.dry_run=true"]) == 2
    assert capsys.readouterr().err == (
        "agentgrpo: run.dry_run=true plans training; agentgrpo train and resume take it, eval does not\n"
    )
