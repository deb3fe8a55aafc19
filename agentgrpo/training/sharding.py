"""FSDP2: every process holds a share of the decoder layers' weights, gradients and optimizer state.

    forward, backward   a layer's weights are gathered while it computes
    gradients           summed over the processes; each process keeps its share
    all other weights   replicated, because their gradients are computed by hand; the ProcessGroup adds these up

A sharded tensor is a DTensor. Every function here also accepts a plain tensor and then leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.kernels.last_layer import decoder_layers


def shard(model: PreTrainedModel, size: int) -> None:
    """Shard the decoder layers of `model` among `size` processes, in place. All processes call this with equal weights.
    Raises ConfigError if the model's layers are not at the usual place in transformers."""
    layers = decoder_layers(model)
    if layers is None:
        raise ConfigError(
            f"hardware.strategy=fsdp with {type(model).__name__}, which has no list of decoder layers; "
            f"choose hardware.strategy=ddp, or a model like Qwen, Llama and Mistral"
        )
    mesh = init_device_mesh(model.device.type, (size,))
    others = {*model.parameters()} - {*layers.parameters()}
    for module in (*layers, model.base_model):
        sharded: FSDPModule = fully_shard(module, mesh=mesh, ignored_params=others)
        # A mini-batch's loss is a sum over its micro-batches, on whichever process they run.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def by_sharding(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (plain tensors, sharded tensors), because no operation takes both at once."""
    found = list(tensors)
    return [t for t in found if not is_sharded(t)], [t for t in found if is_sharded(t)]


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the 2-norm of all tensors together, in float32 or better. A collective if tensors are sharded."""
    plain, sharded = by_sharding(tensors)
    found = _norm(plain) if plain else torch.zeros(())
    if sharded:
        square = _norm([t.to_local() for t in sharded]).double().square()  # type: ignore[attr-defined]
        dist.all_reduce(square, group=sharded[0].device_mesh.get_group())  # type: ignore[attr-defined]
        found = (square + found.double().square()).sqrt()
    return float(found)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    # By default the norm of a half-precision tensor has half precision.
    norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in tensors]
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor. A collective if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Write the full `values` into a tensor; each process writes its share. Every process has the same values."""
    if isinstance(tensor, DTensor):
        given = values.to(tensor.device)
        values = distribute_tensor(given, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(values)


@torch.no_grad()
def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return every tensor in full, sharded ones in main memory; {} if `keep` is false. A collective if tensors are
    sharded."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        everything = whole(tensor)
        if keep:
            found[name] = everything.cpu() if is_sharded(tensor) else everything
    return found
