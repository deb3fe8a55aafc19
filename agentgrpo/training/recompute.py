"""Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174): a decoder
layer keeps nothing but its input, and is computed again when its gradient is due.

transformers' own switch works in training mode only, and there dropout would make the trainer score something else than
the engine sampled. It would also compute again without what was in place around the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentgrpo.errors import ConfigError
from agentgrpo.kernels.last_layer import decoder_layers


@contextmanager
def recomputed_layers(model: PreTrainedModel, in_place: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside, `model` runs with its decoder layers checkpointed; their second run is inside `in_place()`. Raises
    ConfigError for a model whose layers are not where transformers has them."""
    layers = decoder_layers(model)
    if layers is None:
        raise ConfigError(
            f"hardware.activation_checkpointing=true with {type(model).__name__}, which has no list of decoder layers; "
            f"set it to false or choose a model like Qwen, Llama and Mistral"
        )
    for layer in layers:
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn in eval mode
            context_fn=lambda: (nullcontext(), in_place()),
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is back
