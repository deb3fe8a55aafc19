"""LoRA (Hu et al., arXiv 2106.09685): two thin factors beside linear layers of a model, trained in place of the
weights.

    y = W x + alpha / rank * B A x        W stays; A [rank, in] is random, B [out, rank] zero: at first nothing changes

The layers are peft's and are inserted into the transformers model itself, which otherwise keeps its interface: engine,
packed forward and head run the same modules. On disk the adapter has peft's format, too: `adapter_config.json`, which
names the base, and `adapter_model.safetensors`. Not supported: dropout, other variants (DoRA, rank patterns, trained
embeddings) and quantised bases (QLoRA). The factors are float32 or wider.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.training.plausible import refuse_non_finite_weights

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
LOWER = "lower_layers"
"""Name that model.freeze uses for the lower two thirds of the layers."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")
PREFIX = "base_model.model."
"""Prefix of every name in TENSORS: the path of the model inside peft's own wrapper."""
READ = {"base_model_name_or_path", "r", "lora_alpha", "target_modules"}
ADMITTED = {
    "auto_mapping",
    "inference_mode",
    "init_lora_weights",
    "lora_dropout",
    "peft_version",
    "revision",
    "task_type",
}
"""Keys of CONFIG that do not affect the output of an adapter (dropout acts in training mode only, which is never used
here)."""


def has_adapter(model: nn.Module) -> bool:
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def adapter_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the live factors by their names in the model: the tensors that are trained and saved. {} without an
    adapter."""
    if not has_adapter(model):
        return {}
    return {name: p for name, p in model.named_parameters() if ".lora_A." in name or ".lora_B." in name}


def add_adapter(model: PreTrainedModel, settings: LoraSettings, *, base: str, seed: int) -> None:
    """Add a new adapter to `model` and freeze all other weights. A is a function of `seed` alone; the global generator
    is left unchanged. `base`: path of the model's own weights, for loading a checkpoint. Raises ConfigError for targets
    that the model does not have, and if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError("model.lora: adapters need the package peft; install it: pip install 'agentgrpo[lora]'")
    config = _peft_config(settings, _targets(model, settings.targets))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config)
    config.base_model_name_or_path = base
    for tensor in adapter_tensors(model).values():  # peft gives them the base's dtype
        tensor.data = tensor.data.to(torch.promote_types(tensor.dtype, torch.float32))


def save_adapter(model: PreTrainedModel, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write CONFIG and TENSORS to `directory`; the bytes depend on the adapter alone. weights: see Policy.save."""
    directory.mkdir(parents=True, exist_ok=True)
    live = adapter_tensors(model)
    found = live if weights is None else {name: weights[name] for name in live}
    tensors = {PREFIX + _on_disk(name): p.detach().contiguous() for name, p in found.items()}
    save_file(tensors, directory / TENSORS, metadata={"format": "pt"})
    [config] = model.peft_config.values()
    row = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    row["inference_mode"] = True
    (directory / CONFIG).write_text(json.dumps(row, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def adapter_base(folder: Path) -> str | None:
    """Return the path of the weights that the adapter in `folder` modifies; None without an adapter. Raises
    ConfigError."""
    return str(_read_config(folder)["base_model_name_or_path"]) if (folder / CONFIG).is_file() else None


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapter of `folder` to `model`, its base, ready for further training. Raises ConfigError for an adapter
    that is damaged, belongs to another model or has features that `add_adapter` does not create."""
    row = _read_config(folder)
    try:
        settings = LoraSettings(rank=row["r"], alpha=float(row["lora_alpha"]), targets=tuple(row["target_modules"]))
        tensors = load_file(folder / TENSORS)
    except (OSError, SafetensorError, KeyError, TypeError) as e:
        raise ConfigError(f"{folder}: the adapter cannot be read: {e}; give the folder of a LoRA adapter") from e
    own = _peft_config(settings, ()).to_dict()
    if odd := sorted(k for k, v in row.items() if k not in READ | ADMITTED and (v or None) != (own.get(k) or None)):
        raise ConfigError(f"{folder / CONFIG}: {odd[0]}={row[odd[0]]!r}; only plain LoRA of linear layers is supported")
    add_adapter(model, settings, base=row["base_model_name_or_path"], seed=0)
    live = {PREFIX + _on_disk(name): p for name, p in adapter_tensors(model).items()}
    if odd := sorted(live.keys() ^ tensors.keys()) or [n for n, p in live.items() if p.shape != tensors[n].shape]:
        raise ConfigError(
            f"{folder}: {len(odd)} tensors of the adapter do not fit its base model {row['base_model_name_or_path']}, "
            f"such as {odd[0]}; give the adapter the model that it was trained on"
        )
    refuse_non_finite_weights(folder, tensors)
    with torch.no_grad():
        for name, p in live.items():
            p.copy_(tensors[name])


def merge_adapter(model: PreTrainedModel) -> None:
    """Merge the adapter into the weights of `model`, which becomes an ordinary model again. Raises ConfigError if
    merged weights are not finite."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            try:
                module.merge(safe_merge=True)
            except ValueError as e:
                raise ConfigError(f"{name}: {e}; choose a checkpoint whose weights are finite") from e
            model.set_submodule(name, module.get_base_layer())
    model.delete_adapter("default")


def _peft_config(settings: LoraSettings, targets: Sequence[str]) -> Any:
    from peft import LoraConfig

    alpha = int(settings.alpha) if settings.alpha.is_integer() else settings.alpha  # an integer, as most readers expect
    options: dict[str, Any] = {"r": settings.rank, "lora_alpha": alpha, "target_modules": list(targets)}
    return LoraConfig(**options, task_type="CAUSAL_LM")


def _targets(model: PreTrainedModel, names: str | Sequence[str]) -> list[str]:
    """Return the linear layers to adapt, by the last part of their names; never the output layer, which `Head`
    handles."""
    modules, output = dict(model.named_modules()), model.get_output_embeddings()
    linear = {n for n, m in modules.items() if isinstance(m, nn.Linear) and m is not output}
    known = sorted({n.rpartition(".")[2] for n in linear})
    for name in () if isinstance(names, str) else names:
        named = {n for n in modules if n == name or n.endswith(f".{name}")}
        if not named or named - linear:
            raise ConfigError(
                f"model.lora.targets has {name!r}; the linear layers that an adapter of this {type(model).__name__} "
                f"may change are {', '.join(known)}"
            )
    return known if isinstance(names, str) else sorted(set(names))


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        row: Any = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{folder / CONFIG} cannot be read: {e}; give the folder of a LoRA adapter") from e
    if not isinstance(row, dict) or not isinstance(row.get("base_model_name_or_path"), str):
        raise ConfigError(f"{folder / CONFIG} names no base model in base_model_name_or_path; add it")
    return row


def _on_disk(name: str) -> str:
    """Remove the adapter's name, which peft omits on disk."""
    return name.replace(".default.", ".")


# --- Freezing: which of a model's own weights are trained.


def _lower(named: Sequence[tuple[str, nn.Parameter]]) -> list[nn.Parameter]:
    """Return the weights of the lower two thirds of the layers."""
    at = [(int(match[1]), p) for n, p in named if (match := _LAYER.search(n))]
    numbers = sorted({number for number, _ in at})
    lower = {*numbers[: 2 * len(numbers) // 3]}
    return [p for number, p in at if number in lower]


def freeze(model: PreTrainedModel, names: Sequence[str]) -> list[str]:
    """Freeze the weights that `names` match: they keep their bits and have neither gradients nor optimizer state.

    A name is `embeddings`, `head` (the output layer), `lower_layers` (the lower two thirds of the decoder layers), or a
    pattern with * over parameter names. Returns notes on unexpected consequences, one line each. Raises ConfigError for
    a name that matches nothing, if nothing is left to train, and for a model with an adapter, which trains the adapter
    alone.
    """
    if not names:
        return []
    if has_adapter(model):
        raise ConfigError(
            f"model.freeze=[{','.join(names)}] with model.lora: nothing but the adapter trains; set model.freeze=[] or "
            "model.lora.rank=null"
        )
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    parts: dict[str, nn.Module] = {"embeddings": embeddings, "head": head}
    named = list(model.named_parameters(remove_duplicate=False))
    for name in names:
        found = _lower(named) if name == LOWER else [p for n, p in named if fnmatchcase(n, name)]
        found = list(parts[name].parameters()) if name in parts else found
        if not found:
            near = did_you_mean(name, [*parts, LOWER, *dict(named)])
            raise ConfigError(
                f"model.freeze has {name!r}, which names no weights; allowed are embeddings, head, {LOWER}, and "
                f"patterns such as 'model.layers.0.*' over names like {named[0][0]}.{near}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(p.requires_grad for _, p in named):
        raise ConfigError(f"model.freeze=[{','.join(names)}] leaves nothing to train; freeze fewer weights")
    if embeddings.weight is head.weight and not head.weight.requires_grad:
        return ["model.freeze: the embeddings are also the output layer of this model; both are frozen"]
    return []
