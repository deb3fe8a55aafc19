"""What a KL term is measured against: weights that do not train, but may follow those that do.

    frozen      the weights that the run started from; of a model with an adapter: the model without it
    ema         reference <- decay * reference + (1 - decay) * policy, after every update
    periodic    reference <- policy, after every `every`-th step

The last two are the soft and the hard update of "Learn your reference model for real good alignment" (arXiv 2404.09656,
there with alpha = 1 - decay and tau = every), of an adapter's two factors each by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from agentgrpo.core.errors import CheckpointError
from agentgrpo.training.adapters import has_adapter
from agentgrpo.training.policy import Policy
from agentgrpo.training.sharding import whole

PREFIX = "reference/"
"""Before the names of a moving reference among a checkpoint's tensors."""


def frozen_reference(policy: Policy) -> Policy:
    """A copy of `policy` without gradients: as it is now, or with its adapter switched off. What does not train is
    shared, so that it takes the memory of what trains once more. Build it from the weights a run started from (also on
    a resume; with an adapter any will do), and only where `Algorithm.needs_reference`."""
    reference = _copy(policy)
    if has_adapter(policy.model):
        reference.model.disable_adapters()
    return reference


class Reference:
    """`policy` is what the trainer scores with. Call `after_update` once the step's update is done."""

    def __init__(
        self,
        live: Policy,
        *,
        start: Policy | None = None,
        kind: str = "frozen",
        decay: float | None = None,
        every: int | None = None,
    ) -> None:
        """live: the policy that trains. start: the weights that the run started from, where these are not live's of
        now (a frozen reference of a run that is resumed). kind, decay, every: as Algorithm has them."""
        self._decay, self._every, self._live = decay, every, live.model
        self.policy = frozen_reference(start or live) if kind == "frozen" else _copy(live)
        moving = set() if kind == "frozen" else {n for n, p in live.model.named_parameters() if p.requires_grad}
        self._own = {n: p.detach() for n, p in self.policy.model.named_parameters() if n in moving}
        # Half precision cannot tell an average from the average of the step before.
        self._averages = {n: p.float() if kind == "ema" and p.element_size() < 4 else p for n, p in self._own.items()}

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Follow the policy, whose update of the 0-based `step` was made. Of a sharded policy a collective."""
        if self._every is not None and (step + 1) % self._every:
            return
        live = dict(self._live.named_parameters())
        for name, average in self._averages.items():
            policy = whole(live[name])
            if self._decay is not None:
                average.lerp_(policy.to(average.dtype), 1 - self._decay)
            else:
                average.copy_(policy)
            self._own[name].copy_(average)

    def state_tensors(self) -> dict[str, Tensor]:
        """The live state by flat name: save or clone it at once. A frozen reference has none."""
        return {PREFIX + name: average for name, average in self._averages.items()}

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on exactly where `state_tensors` was taken; other names may be among them. Raises CheckpointError, having
        loaded nothing, unless names, shapes and dtypes are the same."""
        own, tensors = self.state_tensors(), {n: t for n, t in tensors.items() if n.startswith(PREFIX)}
        odd = sorted(own.keys() ^ tensors.keys()) or [
            n for n, t in own.items() if (t.shape, t.dtype) != (tensors[n].shape, tensors[n].dtype)
        ]
        if odd:
            raise CheckpointError(
                f"reference state: {len(odd)} tensors differ from this model's, such as {odd[0]!r}; resume with the "
                "same model, the same trainable parameters and the same algorithm.reference"
            )
        for name, average in self._averages.items():
            average.copy_(tensors[PREFIX + name])
            self._own[name].copy_(average)


def reference_state(reference: Reference | None) -> dict[str, Tensor]:
    """What a checkpoint must hold of it."""
    return {} if reference is None else reference.state_tensors()


def _copy(policy: Policy) -> Policy:
    """Without gradients; what does not train is shared."""
    shared = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
    model = copy.deepcopy(policy.model, shared).requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = None
    return Policy(model=model, tokenizer=policy.tokenizer)
