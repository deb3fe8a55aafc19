"""An adapter trains alone, through the same fast paths; its base keeps every bit."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.adapters import (
    adapter_base,
    adapter_tensors,
    add_adapter,
    has_adapter,
    load_adapter,
    merge_adapter,
)
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.process_group import Alone, ProcessGroup
from agentgrpo.training.reference import Reference, frozen_reference
from agentgrpo.training.sharding import gathered, shard
from agentgrpo.training.trainer import Trainer
from tests.engines import tiny as engines
from tests.grpo.tiny import exact_model, plain_gradient, plain_logprobs, random_samples, tiny_model, tiny_tokenizer
from tests.training.several import on
from tests.training.test_trainer import RecordingAdamW, distance, gradient_of, make_trainer, same_bits

LORA = LoraSettings(rank=3, alpha=6.0)
NARROW = LoraSettings(rank=2, targets=("q_proj", "down_proj"))


def with_adapter(model: PreTrainedModel, settings: LoraSettings = LORA, *, base: str = "base") -> PreTrainedModel:
    """As after some training: B is not zero."""
    add_adapter(model, settings, base=base, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in adapter_tensors(model).items():
            if ".lora_B." in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def policy_of(model: PreTrainedModel) -> Policy:
    return Policy(model=model, tokenizer=tiny_tokenizer())


def values(policy: Policy) -> list[Tensor]:
    return [x for _, x in policy.logprobs(random_samples())]


def test_a_new_adapter_changes_nothing_and_alone_is_trained() -> None:
    plain, model = tiny_model(), tiny_model()
    state = torch.get_rng_state()
    add_adapter(model, LORA, base="base", seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(values(policy_of(model)), values(policy_of(plain)), strict=True))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == adapter_tensors(model).keys()
    linear = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    linear += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert trained == {
        f"model.layers.{i}.{name}.lora_{part}.default.weight" for i in range(2) for name in linear for part in "AB"
    }
    assert not has_adapter(plain)
    assert adapter_tensors(plain) == {}


def test_it_is_a_function_of_its_seed() -> None:
    def made(seed: int) -> dict[str, Tensor]:
        model = tiny_model()
        add_adapter(model, LORA, base="base", seed=seed)
        return adapter_tensors(model)

    assert same_bits(made(0), made(0))
    assert not same_bits(made(0), made(1))


@pytest.mark.parametrize("settings", [LORA, NARROW], ids=["all-linear", "two"])
@pytest.mark.parametrize(("family", "kv_heads"), [("qwen3", 4), ("llama", 2)])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_the_gradient_is_that_of_plain_autograd(
    family: str, kv_heads: int, settings: LoraSettings, recompute: bool
) -> None:
    """Packed rows, narrow last layer and chunked head against padded rows and full logits, in float64."""
    samples = random_samples()
    model = with_adapter(exact_model(family, kv_heads=kv_heads), settings)
    expected = plain_gradient(model, samples)
    assert expected.keys() == adapter_tensors(model).keys()
    algorithm = Algorithm(aggregation="token_mean", loss_args={"clip_low": 1.0, "clip_high": 1e6})
    trainer = make_trainer(
        model, algorithm, activation_checkpointing=recompute, tokens_per_micro_batch=24, head_chunk_tokens=5
    )
    assert distance(gradient_of(trainer, samples), expected) < 1e-12


def test_the_base_keeps_every_bit_and_takes_no_gradient_memory() -> None:
    model = with_adapter(tiny_model())
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = AdamW(model=model, lr=1e-2, warmup_steps=0)
    policy = policy_of(model)
    trainer = Trainer(
        policy=policy,
        reference=None,
        optimizer=optimizer,
        algorithm=Algorithm(num_epochs=2, mini_batches=2, correction="none"),
        total_steps=3,
    )
    for step in range(3):
        trainer.update(random_samples(), step=step)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == adapter_tensors(model).keys()
    assert {name.rpartition(".")[0] for name in optimizer.state_tensors()} == moved
    assert sum(p.numel() for p in policy.saved) == sum(p.numel() for p in adapter_tensors(model).values())


def test_the_reference_is_the_model_without_its_adapter_bit_for_bit_and_shares_its_weights() -> None:
    base = values(policy_of(tiny_model()))
    policy = policy_of(with_adapter(tiny_model()))
    reference = frozen_reference(policy)
    assert all(torch.equal(a, b) for a, b in zip(values(reference), base, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(values(policy), base, strict=True))
    own = dict(reference.model.named_parameters())
    copied = {n for n, p in policy.model.named_parameters() if own[n] is not p}
    assert copied == adapter_tensors(policy.model).keys()
    assert all(p.requires_grad for p in adapter_tensors(policy.model).values())  # which peft's switch takes away


def test_a_kl_term_pulls_back_to_the_base() -> None:
    """With advantage 0 nothing but the KL has a gradient: trained long enough, the policy is the base again."""
    policy = policy_of(with_adapter(tiny_model()))
    base = frozen_reference(policy)
    optimizer = RecordingAdamW(model=policy.model, lr=2e-2, warmup_steps=0, final_fraction=0.1)
    algorithm = Algorithm(kl_coef=1.0, kl="mse", aggregation="token_mean")
    trainer = Trainer(policy=policy, reference=base, optimizer=optimizer, algorithm=algorithm, total_steps=60)
    samples = [s.__class__(**{**_fields(s), "advantage": 0.0}) for s in random_samples(groups=1)]
    kl = [trainer.update(samples, step=step).kl or math.inf for step in range(60)]
    assert kl[-1] < 0.02 * kl[0]


def _fields(sample: object) -> dict[str, object]:
    return {name: getattr(sample, name) for name in sample.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "packed"])
@pytest.mark.parametrize("family", ["qwen3", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen2", "llama"))])
def test_the_engine_samples_from_base_and_adapter(family: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log-probs are the trainer's and the model's own, and no schedule changes a bit of them."""
    if packed:
        monkeypatch.setattr("agentgrpo.engines.kernels.linear.LEAST_WEIGHTS", 1)
    model = with_adapter(engines.model(family), LoraSettings(rank=4))
    episodes = [(task, sample) for task in range(3) for sample in range(3)]
    played = asyncio.run(engines.play_all(engines.engine(model), episodes))
    alone = asyncio.run(engines.play_all(engines.engine(model, slots=1), episodes))
    assert engines.bits(played) == engines.bits(alone)
    engine, at = engines.engine(model), len(engines.prompt(0))
    for version in range(2):
        tokens, completions = asyncio.run(engines.play(engine, 0, 0))
        expected = engines.plain_logprobs(model, tokens)
        sampled = expected[at - 1 : at - 1 + len(completions[0].token_ids)]
        assert completions[0].logprobs == pytest.approx(sampled, abs=1e-4)
        with torch.no_grad():
            for p in adapter_tensors(model).values():
                p.mul_(0.5)
        asyncio.run(engine.load_weights(version + 1))
    expected = engines.plain_logprobs(model, tokens)
    without = engines.plain_logprobs(engines.model(family), tokens)
    assert max(abs(a - b) for a, b in zip(expected, without, strict=True)) > 0.1


def test_half_precision_bases_have_float32_adapters() -> None:
    model = with_adapter(tiny_model().bfloat16())
    assert {p.dtype for p in adapter_tensors(model).values()} == {torch.float32}
    policy = policy_of(model)
    assert policy.dtype is torch.float32
    trainer = make_trainer(model, Algorithm())
    gradients = gradient_of(trainer, random_samples())
    assert all(bool(g.isfinite().all()) and g.dtype is torch.float32 for g in gradients.values())
    assert [n for n in trainer.optimizer.state_tensors() if n.endswith(".master")] == []


# --- on disk


@pytest.fixture
def base(tmp_path: Path) -> Path:
    policy_of(tiny_model()).save(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def saved(base: Path, tmp_path: Path) -> Path:
    policy_of(with_adapter(load_policy(base).model, base=str(base))).save(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_saved_adapter_comes_back_bit_for_bit_and_trains_on(saved: Path, base: Path) -> None:
    assert adapter_base(saved) == str(base)
    assert adapter_base(base) is None
    again = load_policy(base)
    load_adapter(again.model, saved)
    first = with_adapter(tiny_model())
    assert same_bits(adapter_tensors(again.model), adapter_tensors(first))
    assert all(p.requires_grad for p in adapter_tensors(again.model).values())
    assert all(torch.equal(a, b) for a, b in zip(values(again), values(policy_of(first)), strict=True))


def test_the_folder_holds_the_adapter_alone_and_the_same_bytes_each_time(
    saved: Path, base: Path, tmp_path: Path
) -> None:
    names = {p.name for p in saved.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not names & {"config.json", "model.safetensors"}
    policy_of(with_adapter(load_policy(base).model, base=str(base))).save(tmp_path / "again")
    assert [n for n in names if (saved / n).read_bytes() != (tmp_path / "again" / n).read_bytes()] == []
    row = json.loads((saved / "adapter_config.json").read_text())
    assert row["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert (row["r"], row["lora_alpha"], row["inference_mode"]) == (3, 6, True)


def test_transformers_loads_it_with_peft(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved)
    for sample, ours in policy_of(with_adapter(tiny_model())).logprobs(random_samples()):
        assert torch.allclose(ours, plain_logprobs(model, [sample])[0], atol=1e-5)


def test_merged_it_is_the_same_model_without_peft(saved: Path, base: Path) -> None:
    merged = load_policy(base).model
    load_adapter(merged, saved)
    merge_adapter(merged)
    assert {n for n, _ in merged.named_parameters()} == {n for n, _ in tiny_model().named_parameters()}
    assert not has_adapter(merged)
    for ours, theirs in zip(values(policy_of(with_adapter(tiny_model()))), values(policy_of(merged)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_an_adapter_is_no_start(saved: Path) -> None:
    with pytest.raises(ConfigError, match=r"is an adapter; give a whole model: agentgrpo export --ckpt"):
        load_policy(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, r"use_dora=True; only plain LoRA"),
        ({"rank_pattern": {"q_proj": 8}}, r"rank_pattern=\{'q_proj': 8\}; only plain LoRA"),
        ({"something_new": 1}, r"something_new=1; only plain LoRA"),
        ({"r": 4}, r"28 tensors of the adapter do not fit its base model"),
        ({"target_modules": ["q_proj"]}, r"24 tensors of the adapter do not fit"),
        ({"target_modules": ["w_proj"]}, r"model.lora.targets has 'w_proj'"),
        ({"target_modules": None}, r"the adapter cannot be read"),
        ({"base_model_name_or_path": None}, r"names no base model"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_other_adapters_are_refused(saved: Path, base: Path, change: dict[str, object], message: str) -> None:
    config = saved / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        load_adapter(load_policy(base).model, saved)


def test_what_changes_nothing_may_differ(saved: Path, base: Path) -> None:
    config = saved / "adapter_config.json"
    other = {"lora_dropout": 0.1, "peft_version": "0.99", "inference_mode": False, "task_type": None, "new_key": None}
    config.write_text(json.dumps(json.loads(config.read_text()) | other))
    policy = load_policy(base)
    load_adapter(policy.model, saved)
    expected = values(policy_of(with_adapter(tiny_model())))
    assert all(torch.equal(a, b) for a, b in zip(values(policy), expected, strict=True))


def test_damage_is_named(saved: Path, base: Path) -> None:
    tensors = saved / "adapter_model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="the adapter cannot be read"):
        load_adapter(load_policy(base).model, saved)
    (saved / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"adapter_config.json cannot be read"):
        adapter_base(saved)


def test_a_tensor_too_many_is_refused(saved: Path, base: Path) -> None:
    file = saved / "adapter_model.safetensors"
    save_file(load_file(file) | {"base_model.model.extra.weight": torch.zeros(1)}, file)
    with pytest.raises(ConfigError, match=r"1 tensors of the adapter do not fit .*, such as base_model.model.extra"):
        load_adapter(load_policy(base).model, saved)


def test_merging_refuses_what_is_not_finite() -> None:
    model = with_adapter(tiny_model())
    with torch.no_grad():
        adapter_tensors(model)["model.layers.1.mlp.up_proj.lora_B.default.weight"][0, 0] = math.nan
    with pytest.raises(ConfigError, match=r"model.layers.1.mlp.up_proj: NaNs detected .*; choose a checkpoint"):
        merge_adapter(model)


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, r"model.lora.rank=0; a whole number >= 1, or null is allowed"),
        ({"alpha": 0.0}, r"model.lora.alpha=0.0; a finite number > 0"),
        ({"alpha": math.inf}, r"model.lora.alpha=inf"),
        ({"targets": "q_proj"}, r"model.lora.targets='q_proj'; allowed is all-linear, or a list"),
        ({"targets": ()}, r"model.lora.targets=\(\)"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "q_norm", "mlp", "proj", "x.q_proj"])
@pytest.mark.parametrize("tied", [True, False])
def test_targets_are_linear_layers_but_not_the_head(target: str, tied: bool) -> None:
    model = tiny_model(tied=tied)
    with pytest.raises(ConfigError, match=rf"has '{target}'; the linear layers .* are down_proj, gate_proj, k_proj"):
        add_adapter(model, LoraSettings(rank=2, targets=("q_proj", target)), base="base", seed=0)
    assert not has_adapter(model)


def test_without_peft_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentgrpo\[lora\]'"):
        add_adapter(tiny_model(), LORA, base="base", seed=0)


# --- several processes


def trained_by(
    world: ProcessGroup, sharded: bool, half: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
    """(adapter, moving reference, losses) after four updates."""
    model = with_adapter(tiny_model().bfloat16() if half else tiny_model())
    policy = policy_of(model)
    reference = Reference(policy, kind="ema", decay=0.5)
    if sharded:
        shard(model, world.size)
    trainer = Trainer(
        policy=policy,
        reference=reference.policy,
        optimizer=AdamW(model=model, lr=1e-2, warmup_steps=0),
        algorithm=Algorithm(aggregation="token_mean", kl_coef=0.5),
        total_steps=4,
        tokens_per_micro_batch=32,
        world=world,
    )
    losses = []
    for step in range(4):
        losses.append(trainer.update(random_samples(seed=step), step=step).loss)
        reference.after_update(step)
    whole = gathered(adapter_tensors(model), keep=True)
    return {n: t.detach() for n, t in whole.items()}, reference.state_tensors(), losses


@pytest.mark.parametrize(
    ("sharded", "half"),
    [
        pytest.param(True, False, id="fsdp-float32", marks=pytest.mark.slow),
        pytest.param(True, True, id="fsdp-bfloat16", marks=pytest.mark.slow),
        pytest.param(False, False, id="ddp-float32", marks=pytest.mark.slow),
        pytest.param(False, True, id="ddp-bfloat16", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_the_adapter_of_one(sharded: bool, half: bool) -> None:
    adapter, average, losses = trained_by(Alone(), False, half)
    first, second = on(2, trained_by, sharded, half)
    assert same_bits(first[0], second[0])
    assert same_bits(first[1], second[1])
    tolerance = 2e-2 if half else 1e-5
    assert first[2] == pytest.approx(losses, abs=tolerance)
    assert max(float((first[0][n] - t).abs().max()) for n, t in adapter.items()) < tolerance
    assert max(float((first[1][n] - t).abs().max()) for n, t in average.items()) < tolerance
