"""The last decoder layer computes only the outputs that are read.

All tokens need keys and values in every layer, because later tokens attend to them. But a token whose own output is
never read (in a prompt or a tool's reply: three of four tokens of an agent's episode) needs no query, output projection
or feed-forward in the last layer: most of that layer's work, with no effect on the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

PER_TOKEN = ("self_attn.q_proj", "self_attn.o_proj", "mlp")
"""Modules of a decoder layer that process every token separately and affect only the token's own output."""


@contextmanager
def last_layer_rows(model: PreTrainedModel, rows: Tensor) -> Iterator[None]:
    """Inside the block, the last layer of `model` outputs zeros for all tokens of a packed row [1, T, hidden] except
    `rows` [n], which are distinct. If the model has another layer structure, everything is computed as usual."""
    hooks = [hook for module in _modules(model) for hook in _narrowed(module, rows)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """Return the decoder layers at their usual place in transformers; None for a model with another structure."""
    layers = getattr(model.base_model, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else None


def last_layer(model: PreTrainedModel) -> nn.Module | None:
    layers = decoder_layers(model)
    return layers[-1] if layers else None


def _modules(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules to narrow: every module of PER_TOKEN, or [] if the layer lacks one."""
    layer = last_layer(model)
    try:
        return [] if layer is None else [layer.get_submodule(name) for name in PER_TOKEN]
    except AttributeError:
        return []


def _narrowed(module: nn.Module, rows: Tensor) -> tuple[Any, Any]:
    length = 0

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal length
        length = args[0].shape[1]
        return (args[0].index_select(1, rows), *args[1:])

    def after(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.new_zeros(1, length, output.shape[-1]).index_copy(1, rows, output)

    return module.register_forward_pre_hook(before), module.register_forward_hook(after)
