"""The reference of the KL term: weights that are not trained, but may follow the trained ones.

    frozen      the weights that the run started from; for a model with an adapter: the model without it
    ema         reference <- decay * reference + (1 - decay) * policy, after every update
    periodic    reference <- policy, after every `every`-th step

The last two are the soft and the hard update of "Learn your reference model for real good alignment" (arXiv 2404.09656,
where alpha = 1 - decay and tau = every). For an adapter, each of its two factors is updated separately.
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
"""Prefix of the names of a moving reference among a checkpoint's tensors."""


def frozen_reference(policy: Policy) -> Policy:
    """Return a copy of `policy` without gradients: with its current weights, or with its adapter switched off.
    Parameters that are not trained are shared, so the copy takes the memory of the trained ones once more. Build it
    from the weights that the run started from, also on a resume (with an adapter any weights will do), and only if
    `Algorithm.needs_reference`."""
    reference = _copy(policy)
    if has_adapter(policy.model):
        reference.model.disable_adapters()
    return reference


class Reference:
    """The reference policy of a run. The trainer scores with `policy`. Call `after_update` when the step's update is
    done."""

    def __init__(
        self,
        live: Policy,
        *,
        start: Policy | None = None,
        kind: str = "frozen",
        decay: float | None = None,
        every: int | None = None,
    ) -> None:
        """live: the policy being trained. start: the weights that the run started from, if they differ from live's
        current ones (a frozen reference in a resumed run). kind, decay, every: see Algorithm."""
        self._decay, self._every, self._live = decay, every, live.model
        self.policy = frozen_reference(start or live) if kind == "frozen" else _copy(live)
        moving = set() if kind == "frozen" else {n for n, p in live.model.named_parameters() if p.requires_grad}
        self._own = {n: p.detach() for n, p in self.policy.model.named_parameters() if n in moving}
        # In half precision the change of the average in one step would be rounded away.
        self._averages = {n: p.float() if kind == "ema" and p.element_size() < 4 else p for n, p in self._own.items()}

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Follow the policy after the update of the 0-based `step`. A collective if the policy is sharded."""
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
        """Return the live state by flat name: save or clone it at once. A frozen reference has no state."""
        return {PREFIX + name: average for name, average in self._averages.items()}

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state returned by `state_tensors`; other names in `tensors` are ignored. Raises CheckpointError,
        having loaded nothing, unless names, shapes and dtypes match."""
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
    """Return the reference tensors that a checkpoint must contain."""
    return {} if reference is None else reference.state_tensors()


def _copy(policy: Policy) -> Policy:
    """Copy without gradients; parameters that are not trained are shared."""
    shared = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
    model = copy.deepcopy(policy.model, shared).requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = None
    return Policy(model=model, tokenizer=policy.tokenizer)
