"""A config.json that describes more than its weights hold is refused before anything is built of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from agentgrpo.core.errors import ConfigError
from agentgrpo.models.loading import Start
from agentgrpo.training.plausible import refuse_endless_layers, refuse_outer_weights, refuse_unheld_weights
from agentgrpo.training.policy import load_policy
from agentgrpo.training.remote_code import loaded
from tests.e2e.test_models import made

SMALL = {"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 16, "intermediate_size": 8}


def folder(path: Path, config: Any) -> Path:
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file({"x": torch.zeros(400_000)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is more than 1000, which no model has"),
        ({"n_layer": 10**400}, "n_layer is more than 1000"),
        ({"a": [{"text_config": {"num_hidden_layers": 1e9}}]}, "num_hidden_layers is more than 1000"),
        ("[" * 100_000, r"is damaged: RecursionError: "),
        ("[]", "is damaged: ValueError: a list instead of an object"),
        ("\x00", "is damaged: "),
    ],
)
def test_layers_that_no_model_has(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_endless_layers(folder(tmp_path, config))


def test_what_models_have_is_let_through(tmp_path: Path) -> None:
    config = {**SMALL, "max_window_layers": 28, "max_position_embeddings": 10**6, "layer_types": ["full_attention"]}
    refuse_unheld_weights(folder(tmp_path, config))
    refuse_unheld_weights(tmp_path / "name of the hub")
    with pytest.raises(ConfigError):
        refuse_unheld_weights(folder(tmp_path, config | {"hidden_size": 10**9}))


def test_weights_that_no_file_holds_are_not_made(tmp_path: Path) -> None:
    """transformers would fill them with random numbers, which takes their memory, before it says that they are
    missing."""
    config = folder(tmp_path, {"model_type": "qwen3", "num_hidden_layers": 40})
    with pytest.raises(ConfigError, match=r"config\.json describes [\d,]{14,} weights, .* have 1,600,\d+ bytes; give "):
        load_policy(config)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("value", ["x", 2.5, 0, -1, 10**9, 10**18, 10**400])
def test_impossible_sizes_are_one_line(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError) as e:
        load_policy(folder(tmp_path, {**SMALL, key: value}))
    assert "\n" not in str(e.value)


OUTER: list[Any] = [
    *("../other/model.safetensors", "/etc/x.safetensors", "inside/model.safetensors", "./model.safetensors"),
    *(
        "..",
        "",
        "model.bin",
        "a\\b.safetensors",
        "x.safetensors\n",
        "x.safetensors\0",
        "file:x.safetensors/.",
        None,
        7,
        [],
    ),
]


@pytest.mark.parametrize("name", OUTER, ids=repr)
@pytest.mark.parametrize("where", ["index", "config"])
def test_weights_that_lie_elsewhere_are_refused(name: Any, where: str, tmp_path: Path) -> None:
    """transformers loads them, and a run that is resumed would not see that they are others."""
    model = made("llama", tmp_path / "model")
    shutil.copytree(model, tmp_path / "other")
    shutil.copytree(model, model / "inside")
    if where == "index":
        (model / "model.safetensors").rename(tmp_path / "away.safetensors")
        with safe_open(tmp_path / "away.safetensors", framework="pt") as opened:
            index = {"metadata": {}, "weight_map": dict.fromkeys(opened.keys(), name)}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    elif name is None:
        return
    else:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(
        ConfigError, match=r"names the weights .*; allowed are files \*\.safetensors of the folder"
    ) as e:
        load_policy(model)
    assert "\n" not in str(e.value)
    with pytest.raises(ConfigError, match="names the weights"), loaded(model):
        pass


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', "{}", '{"weight_map": 3}', "[" * 10**5, "\0"])
def test_an_index_that_is_none_is_one_line(content: str, tmp_path: Path) -> None:
    model = made("llama", tmp_path / "model")
    (model / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError) as e:
        load_policy(model)
    assert "\n" not in str(e.value)


def test_weights_behind_a_link_are_known_again_by_what_they_hold(tmp_path: Path) -> None:
    """The hub's cache has them so."""
    model, blob = made("llama", tmp_path / "model"), tmp_path / "blob"
    (model / "model.safetensors").rename(blob)
    (model / "model.safetensors").symlink_to(blob)
    refuse_outer_weights(model)
    load_policy(model)
    before = Start(model).state()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    assert Start(model).state() != before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_weight_that_is_no_number_is_named_with_its_tensor_and_file(
    value: float, sharded: bool, tmp_path: Path
) -> None:
    folder = made("llama", tmp_path / "model")
    if sharded:
        load_policy(folder).model.save_pretrained(folder, max_shard_size="20KB")
        (folder / "model.safetensors").unlink()
    name = "model.layers.1.mlp.down_proj.weight"
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name][0, :3] = value
            save_file(tensors, file, metadata={"format": "pt"})
            spoilt = file
    with pytest.raises(ConfigError) as e:
        load_policy(folder)
    nan, infinite = (3, 0) if value != value else (0, 3)
    assert str(e.value).startswith(f"{spoilt}: of the {load_file(spoilt)[name].numel():,} numbers of {name} ")
    assert f" {nan} are NaN and {infinite} infinite, " in str(e.value)
