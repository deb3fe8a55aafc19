"""Model folders of others: one that describes more than its weights can hold is refused before anything of it is built.

transformers makes a layer for each that config.json counts, and memory for each weight that no file has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.untrusted import damaged

LAYERS = 1000
_COUNTS = re.compile(r"(?:^|_)(?:layers?|blocks|depth)$")
_PER_BYTE = 4
"""Weights in a byte of the files, at most."""


def refuse_endless_layers(folder: Path) -> None:
    """Raise ConfigError for a config.json that is none, or that counts more layers than any model has."""
    file = folder / "config.json"
    if not file.is_file():
        return  # whoever loads it says so
    with damaged(file, ConfigError):
        config = json.loads(file.read_bytes())
        if not isinstance(config, dict):
            raise ValueError(f"a {type(config).__name__} instead of an object")
    for key, value in _numbers(config):
        if value > LAYERS and _COUNTS.search(key):
            raise ConfigError(f"{file}: {key} is more than {LAYERS}, which no model has; give another model")


def refuse_unheld_weights(folder: Path) -> None:
    """Raise ConfigError for a config.json that describes many more weights than the safetensors of the folder hold."""
    refuse_endless_layers(folder)
    files = [*folder.glob("*.safetensors")]
    if not files:
        return  # whoever loads it says so
    held = sum(file.stat().st_size for file in files)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    described = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if described > _PER_BYTE * held:
        raise ConfigError(
            f"{folder / 'config.json'} describes {described:,} weights, and the safetensors beside it have {held:,} "
            "bytes; give the config.json of these weights"
        )


def _numbers(node: Any) -> Iterator[tuple[str, float]]:
    """(key, number) of all that a tree has."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            if isinstance(value, int | float):
                yield str(key), value
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
