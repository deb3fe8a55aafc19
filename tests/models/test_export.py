"""From folders to policies and back to folders: whole models, adapters, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgrpo.cli.main import main
from agentgrpo.config.hardware import Hardware
from agentgrpo.core.durable import atomic_directory, verify_directory
from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.models.export import export_model, holds_model
from agentgrpo.models.loading import Start, local_folder, open_policy
from agentgrpo.training.adapters import adapter_tensors
from agentgrpo.training.checkpoint import STATE, CheckpointStore
from agentgrpo.training.policy import Policy, load_policy
from tests.grpo.tiny import random_samples, tiny_model, tiny_tokenizer
from tests.training.test_adapters import with_adapter

HARDWARE = Hardware()


def whole_model(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    Policy(model=tiny_model().to(dtype), tokenizer=tiny_tokenizer()).save(folder)
    return folder


def checkpoint(run_dir: Path, base: Path, *, adapter: bool, dtype: str = "float32") -> Path:
    """As a run that started from `base` saves it."""
    policy = load_policy(base, dtype=dtype)
    if adapter:
        with_adapter(policy.model, base=str(base))
    store = CheckpointStore(run_dir=run_dir)
    return store.save(1, write_model=policy.save, tensors={}, state={"start": Start(base).state()})


def logprobs(model: object) -> torch.Tensor:
    policy = Policy(model=model, tokenizer=tiny_tokenizer())  # type: ignore[arg-type]
    return torch.cat([x for _, x in policy.logprobs(random_samples())])


def test_an_adapter_is_merged_and_the_folder_is_a_model_like_any_other(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "run", whole_model(tmp_path / "base"), adapter=True)
    out = tmp_path / "new" / "folder"
    assert main(["export", "--ckpt", str(saved), "--merge", str(out)]) == 0
    verify_directory(out)
    names = {p.name for p in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any("adapter" in name or name == "trainer" for name in names)
    merged = AutoModelForCausalLM.from_pretrained(out)
    assert torch.allclose(logprobs(merged), logprobs(with_adapter(tiny_model())), atol=1e-5)
    assert not torch.allclose(logprobs(merged), logprobs(tiny_model()), atol=1e-2)
    assert AutoTokenizer.from_pretrained(out)("w3 w4")["input_ids"] == [3, 4]
    assert merged.lm_head.weight is merged.model.embed_tokens.weight


def test_it_is_rounded_once_to_the_dtype_of_the_base(tmp_path: Path) -> None:
    base = whole_model(tmp_path / "base", torch.bfloat16)
    saved = checkpoint(tmp_path / "run", base, adapter=True, dtype="bfloat16")
    export_model(saved, tmp_path / "out")
    merged, plain = load_file(tmp_path / "out" / "model.safetensors"), load_file(base / "model.safetensors")
    assert {t.dtype for t in merged.values()} == {torch.bfloat16}
    name, factors = "model.layers.0.mlp.up_proj", load_file(saved / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    expected = (plain[f"{name}.weight"].float() + 6 / 3 * b @ a).bfloat16()
    assert torch.equal(merged[f"{name}.weight"], expected)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_whole_model_is_copied_as_it_is(tmp_path: Path) -> None:
    base = whole_model(tmp_path / "base")
    saved = checkpoint(tmp_path / "run", base, adapter=False)
    export_model(saved, tmp_path / "out")
    verify_directory(tmp_path / "out")
    files = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.name != "manifest.json"}
    assert files == {p.name: p.read_bytes() for p in saved.iterdir() if p.is_file() and p.name != "manifest.json"}
    export_model(base, tmp_path / "of a plain folder")
    assert holds_model(tmp_path / "of a plain folder")


def test_nothing_is_overwritten_and_no_half_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = checkpoint(tmp_path / "run", whole_model(tmp_path / "base"), adapter=True)
    out = tmp_path / "out"
    out.mkdir()
    assert main(["export", "--ckpt", str(saved), "--merge", str(out)]) == 2
    assert f"{out} exists, and nothing is overwritten" in capsys.readouterr().err
    assert list(out.iterdir()) == []
    assert main(["export", "--ckpt", str(tmp_path), "--merge", str(tmp_path / "x")]) == 2
    assert "holds no model; give a checkpoint" in capsys.readouterr().err
    assert main(["export", "--ckpt", str(saved)]) == 2
    assert "export needs both: --ckpt RUN/checkpoints/step-000150 --merge OUT" in capsys.readouterr().err
    config = saved / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    assert main(["export", "--ckpt", str(saved), "--merge", str(tmp_path / "x")]) == 4
    assert {p.name for p in tmp_path.iterdir()} == {"base", "out", "run"}


# --- loading


def test_an_adapter_is_read_with_the_base_it_was_trained_on(tmp_path: Path) -> None:
    base = whole_model(tmp_path / "base")
    saved = checkpoint(tmp_path / "run", base, adapter=True)
    policy = open_policy(saved, HARDWARE)
    assert torch.equal(logprobs(policy.model), logprobs(with_adapter(tiny_model())))
    assert {n for n, p in policy.model.named_parameters() if p.requires_grad} == adapter_tensors(policy.model).keys()
    weights = load_file(base / "model.safetensors")
    Policy(model=tiny_model(seed=1), tokenizer=tiny_tokenizer()).save(base)
    with pytest.raises(
        CheckpointError, match=r"the adapter in .* needs the start weights, and .*/base no longer holds"
    ):
        open_policy(saved, HARDWARE)
    assert load_file(base / "model.safetensors").keys() == weights.keys()


def test_an_adapter_of_other_origin_names_its_base(tmp_path: Path) -> None:
    base = whole_model(tmp_path / "base")
    Policy(model=with_adapter(tiny_model(), base=str(base)), tokenizer=tiny_tokenizer()).save(tmp_path / "adapter")
    assert torch.equal(
        logprobs(open_policy(tmp_path / "adapter", HARDWARE).model), logprobs(with_adapter(tiny_model()))
    )
    base.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="there is no such folder"):
        open_policy(tmp_path / "adapter", HARDWARE)


def test_damage_is_found_before_anything_is_read(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "model") as folder:
        whole_model(folder)
    assert torch.equal(logprobs(open_policy(tmp_path / "model", HARDWARE).model), logprobs(tiny_model()))
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config.json: expected sha256"):
        open_policy(tmp_path / "model", HARDWARE)


def test_a_start_whose_hash_is_another_is_none(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "run", whole_model(tmp_path / "base"), adapter=True)
    (tmp_path / "base" / "extra.json").write_text("{}")
    with pytest.raises(CheckpointError, match="put the folder back"):
        open_policy(saved, HARDWARE)
    (tmp_path / "base" / "extra.json").unlink()
    assert json.loads((saved / STATE).read_text())["state"]["start"]["folder"] == str(tmp_path / "base")
    open_policy(saved, HARDWARE)


def test_a_name_of_the_hub_is_where_its_cache_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--me--tiny" / "snapshots" / ("0" * 40)
    whole_model(snapshot)
    (tmp_path / "hub" / "models--me--tiny" / "refs").mkdir()
    (tmp_path / "hub" / "models--me--tiny" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    assert local_folder("me/tiny") == snapshot
    assert Start(local_folder("me/tiny")).state()["sha256"] == Start(snapshot).state()["sha256"]
    assert local_folder("me/other") == tmp_path / "me" / "other"
    assert local_folder("no such folder") == tmp_path / "no such folder"
    assert local_folder("hub") == tmp_path / "hub"
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_policy(local_folder("me/other"))
