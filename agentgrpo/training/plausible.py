"""Checks of model folders from others: a folder whose config.json describes more than its weights can hold is refused
before anything is built from it.

transformers creates every layer that config.json counts, and allocates memory for every weight missing in the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.untrusted import damaged
from agentgrpo.training.precision import first_non_finite

LAYERS = 1000
_COUNTS = re.compile(r"(?:^|_)(?:layers?|blocks|depth)$")
_KINDS = ("safetensors", "bin")
"""Suffixes of weight files."""
_PER_BYTE = 4
"""Maximum number of weights per byte of the files."""


def refuse_endless_layers(folder: Path) -> None:
    """Raise ConfigError for an invalid config.json, or one that counts more layers than any model has."""
    file = folder / "config.json"
    if not file.is_file():
        return  # loading the folder will report it
    refuse_many_layers(_object(file), file)


def refuse_many_layers(config: Mapping[str, Any], where: object) -> None:
    """Like `refuse_endless_layers`, for the content of a config.json; `where` names its origin."""
    for key, value in _numbers(config):
        if value > LAYERS and _COUNTS.search(key):
            raise ConfigError(f"{where}: {key} is more than {LAYERS}, which no model has; give another model")


def refuse_outer_weights(folder: Path) -> None:
    """Raise ConfigError if a file of the folder names weights outside the folder, because the folder is later
    identified by its own files alone."""
    indexes = [(kind, index) for kind in _KINDS for index in folder.glob(f"*.{kind}.index.json")]
    named = [(kind, index, name) for kind, index in indexes for name in _mapped(index)]
    config = folder / "config.json"
    if config.is_file() and (name := _object(config).get("transformers_weights")) is not None:
        named.append((_KINDS[0], config, name))
    for kind, file, name in named:
        if not (isinstance(name, str) and re.fullmatch(rf"[^/\\\0]+\.{kind}", name)):
            raise ConfigError(
                f"{file} names the weights {str(name)[:200]!r}; allowed are files *.{kind} of the folder itself: put "
                "them there, and correct the name"
            )


def _mapped(index: Path) -> Iterable[Any]:
    named = _object(index).get("weight_map")
    if not isinstance(named, dict):
        raise ConfigError(f"{index}: weight_map is missing or not an object; give the index of these weights")
    return named.values()


def _object(file: Path) -> dict[str, Any]:
    with damaged(file, ConfigError):
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of an object")
    return content


def refuse_unheld_weights(folder: Path) -> None:
    """Raise ConfigError if config.json describes many more weights than the folder's safetensors hold."""
    refuse_endless_layers(folder)
    files = [*folder.glob("*.safetensors")]
    if not files:
        return  # loading the folder will report it
    held = sum(file.stat().st_size for file in files)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if (described := described_weights(config)) > _PER_BYTE * held:
        raise ConfigError(
            f"{folder / 'config.json'} describes {described:,} weights, and the safetensors beside it have {held:,} "
            "bytes; give the config.json of these weights"
        )


def refuse_non_finite_weights(folder: Path, loaded: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if a weight is NaN or infinite, naming the tensor and the file of `folder` that contains it."""
    if (name := first_non_finite(loaded)) is None:
        return
    where, tensor = f"model {str(folder)!r}", loaded[name]
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as held:
            odd = next((key for key in held.keys() if first_non_finite({key: held.get_tensor(key)})), None)  # noqa: SIM118
            if odd is not None:
                where, name, tensor = str(file), odd, held.get_tensor(odd)
                break
    nan, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    raise ConfigError(
        f"{where}: of the {tensor.numel():,} numbers of {name} {nan:,} are NaN and {infinite:,} infinite, but weights "
        "must be finite; download or convert the model anew, or go back to an earlier checkpoint"
    )


def described_weights(config: PretrainedConfig) -> int:
    """Return the number of weights of a model with this configuration."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def _numbers(node: Any) -> Iterator[tuple[str, float]]:
    """Yield (key, number) for all numbers in a tree."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            if isinstance(value, int | float):
                yield str(key), value
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
