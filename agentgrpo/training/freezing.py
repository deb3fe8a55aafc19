"""Which of a model's own weights train."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn
from transformers import PreTrainedModel

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.training.adapters import has_adapter


def freeze(model: PreTrainedModel, names: Sequence[str]) -> list[str]:
    """Take what `names` name out of training: it keeps its bits, and has neither gradients nor optimizer state.

    A name is `embeddings`, `head` (the output layer), or a pattern with * over parameter names. Returns what the user
    may not expect, a line each. Raises ConfigError for a name that nothing has, where nothing is left to train, and for
    a model with an adapter, of which nothing else trains.
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
        found = [p for n, p in named if fnmatchcase(n, name)]
        found = list(parts[name].parameters()) if name in parts else found
        if not found:
            raise ConfigError(
                f"model.freeze has {name!r}, which names no weights; allowed are embeddings, head, and patterns such "
                f"as 'model.layers.0.*' over names as {named[0][0]}.{did_you_mean(name, [*parts, *dict(named)])}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(p.requires_grad for _, p in named):
        raise ConfigError(f"model.freeze=[{','.join(names)}] leaves nothing to train; name less")
    if embeddings.weight is head.weight and not head.weight.requires_grad:
        return ["model.freeze: the embeddings are also the output layer of this model; both are frozen"]
    return []
