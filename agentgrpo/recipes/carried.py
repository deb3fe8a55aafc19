"""What a step hands to the next one besides the weights, and how a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentgrpo.recipes.kept_groups import from_json, to_json
from agentgrpo.training.policy import Policy
from agentgrpo.training.sharding import fill, whole
from agentgrpo.types import ScoredGroup

PREFIX = "sampler/"
"""Of the sampler's weights among a checkpoint's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Never changed: a step makes the next one's anew, which counts from the step's record on."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Mean correctness by task, as far as it was measured: what the curriculum goes by (tasks.curriculum)."""
    replay: tuple[ScoredGroup, ...] = ()
    """The newest groups that taught something, oldest first."""
    sampler: Mapping[str, Tensor] | None = None
    """Where the next step's rollout was begun one step ahead: the weights it is sampled from, those before the last
    update. None = it is begun when it is due, with the weights as they are then."""

    def state(self) -> dict[str, Any]:
        return {"rates": dict(self.rates), "replay": [to_json(group) for group in self.replay]}

    def tensors(self) -> dict[str, Tensor]:
        return {PREFIX + name: tensor for name, tensor in (self.sampler or {}).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Carried:
        """From what `state` and `tensors` gave, other entries among them."""
        sampler = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        return cls(
            rates=state["rates"],
            replay=tuple(from_json(group) for group in state["replay"]),
            sampler=sampler or None,
        )


def of_optimizer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a checkpoint's tensors the optimizer's: the names of all others have a slash."""
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def sampler_weights(policy: Policy) -> dict[str, Tensor]:
    """A copy, in main memory, of all that an update changes."""
    return {n: whole(p.detach()).to("cpu", copy=True) for n, p in policy.model.named_parameters() if p.requires_grad}


@contextmanager
def with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the policy has these; its own are back afterwards."""
    own = sampler_weights(policy)
    try:
        _set(policy, weights)
        yield
    finally:
        _set(policy, own)


@torch.no_grad()
def _set(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(policy.model.named_parameters())
    for name, tensor in weights.items():
        fill(parameters[name], tensor)
