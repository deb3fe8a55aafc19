"""A model's shape without its weights: what `model.shape` says of it, its config.json, or both where they agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.training.remote_code import plain_config, trusted_class, trusted_config

LONGEST = "max_position_embeddings"


def config_of(shape: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration that these keys of a config.json describe, model_type among them. Raises ConfigError for keys
    that such a model does not have."""
    kind = shape.get("model_type")
    facts = {key: value for key, value in shape.items() if key != "model_type"}
    try:
        known = AutoConfig.for_model(str(kind)).to_dict()
    except ValueError as e:
        raise ConfigError(f"model.shape.model_type={kind}: transformers has no such model; qwen3 is one") from e
    if odd := sorted(facts.keys() - known.keys()):
        near = did_you_mean(odd[0], known)
        raise ConfigError(f"model.shape.{odd[0]}: a {kind} has no such key in its config.json; leave it out.{near}")
    return AutoConfig.for_model(str(kind), **facts)


def refuse_other_shape(folder: Path, shape: Mapping[str, Any] | None, *, trust_remote_code: bool = False) -> None:
    """Raise ConfigError where the model in `folder` is not of that shape. It may be good for more positions, as some
    variants of a model are."""
    if shape is None:
        return
    found = (trusted_config if trust_remote_code else plain_config)(folder).to_dict()
    for key, value in shape.items():
        if key == LONGEST and int(found.get(key) or 0) >= value:
            continue
        if found.get(key) != value:
            raise ConfigError(
                f"model.shape.{key}={value}, but the model in {folder} has {key}={found.get(key)}; choose the preset "
                "of that model, or set model.shape=null"
            )


def weightless(config: PretrainedConfig, code: Path | None = None) -> PreTrainedModel:
    """The model with tensors that have shapes, and neither memory nor values. code: as in policy.load_policy."""
    with torch.device("meta"):
        own = AutoModelForCausalLM.from_config if code is None else trusted_class(code)._from_config
        model: PreTrainedModel = own(config)
    return model
