"""What is written for engines elsewhere is a model like any other, and says by its name what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.durable import verify_directory
from agentgrpo.training.adapters import add_adapter, load_adapter
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines import tiny

IDS = torch.tensor([[5, 6, 7, 8]])


def policy(family: str = "qwen3") -> Policy:
    return Policy(model=tiny.model(family), tokenizer=tiny.tokenizer())


@torch.no_grad()
def same(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    return torch.equal(model(input_ids=IDS).logits, other(input_ids=IDS).logits)


def test_tied_embeddings_are_written_as_two_and_the_model_stays_the_same(tmp_path: Path) -> None:
    trained = policy()
    assert trained.model.config.tie_word_embeddings
    PolicyFiles(trained, Alone()).write(tmp_path / "1")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1").eval()
    assert not loaded.config.tie_word_embeddings
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    assert same(loaded, trained.model)
    assert trained.model.lm_head.weight is trained.model.model.embed_tokens.weight
    assert "tokenizer.json" in verify_directory(tmp_path / "1")


def test_a_model_in_several_files_gets_its_output_layer_in_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = policy()
    save = type(trained.model).save_pretrained
    small = lambda self, *args, **kwargs: save(self, *args, **kwargs, max_shard_size="100KB")  # noqa: E731
    monkeypatch.setattr(type(trained.model), "save_pretrained", small)
    PolicyFiles(trained, Alone()).write(tmp_path / "1")
    index = json.loads((tmp_path / "1" / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    assert index["lm_head.weight"] == "model-head.safetensors"
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path / "1").eval(), trained.model)


def test_untied_embeddings_are_written_as_they_are(tmp_path: Path) -> None:
    trained = policy("qwen2")
    PolicyFiles(trained, Alone()).write(tmp_path / "1")
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path / "1").eval(), trained.model)
    assert [p.name for p in (tmp_path / "1").glob("*.safetensors*")] == ["model.safetensors"]


def test_of_an_adapter_the_adapter_alone_is_written(tmp_path: Path) -> None:
    trained = policy()
    add_adapter(trained.model, LoraSettings(rank=2), base="x", seed=0)
    for name, p in trained.model.named_parameters():
        if ".lora_B." in name:
            p.data.normal_()
    files = PolicyFiles(trained, Alone())
    files.write(tmp_path / "1")
    assert files.is_adapter
    assert [p.name for p in (tmp_path / "1").glob("*.safetensors")] == ["adapter_model.safetensors"]
    base = tiny.model()
    load_adapter(base, tmp_path / "1")
    assert same(base, trained.model)


def test_equal_weights_have_one_name_and_others_another(tmp_path: Path) -> None:
    trained = policy()
    files = PolicyFiles(trained, Alone())
    one, again = files.write(tmp_path / "1"), files.write(tmp_path / "2")
    trained.model.lm_head.weight.data[3, 3] += 1e-6
    assert one == again != files.write(tmp_path / "3")
