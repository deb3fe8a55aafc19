"""The optimizers: AdamW for GRPO, resumable bit for bit, and Muon for the hidden matrices of a warm start."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from agentgrpo.config.values import CountOrZero, Positive, PositiveOrZero, Share, check_arguments
from agentgrpo.core.errors import CheckpointError
from agentgrpo.training.adapters import has_adapter
from agentgrpo.training.learning_rate import scheduled, usual_rate
from agentgrpo.training.sharding import by_sharding, fill, norm

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master"
Beta = Annotated[float, Ge(0), Lt(1)]


class AdamW:
    """AdamW with warm-up, linear decay and gradient clipping, over the parameters of `model` that need a gradient.

    The learning rate is a pure function of the step, so only the state of the parameters has to be saved. Weight decay
    applies to matrices, not to norms and biases. Half-precision parameters are rounded copies of float32 masters, which
    receive the updates: at a small learning rate most of an update is too small for half precision. lr: null = the
    usual rate for a model of this size (training.learning_rate). Raises ConfigError for a value out of range.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        lr: Positive | None = None,
        betas: tuple[Beta, Beta] = (0.9, 0.99),
        weight_decay: PositiveOrZero = 0.0,
        eps: Positive = 1e-8,
        warmup_steps: CountOrZero = 5,
        final_fraction: Share = 0.1,
        max_grad_norm: Annotated[float, Gt(0)] = 1.0,
    ) -> None:
        check_arguments("optimizer", AdamW.__init__, locals())
        weights = sum(p.numel() for p in model.parameters())
        self.lr = usual_rate(weights, is_adapter=has_adapter(model)) if lr is None else lr
        self.warmup_steps = warmup_steps
        self.final_fraction = final_fraction
        self.max_grad_norm = max_grad_norm
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._masters = {n: p.detach().float() for n, p in self._parameters.items() if p.element_size() < 4}
        parameters = (self._parameters | self._masters).values()
        matrices, others = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [
                {"params": params, "weight_decay": decay}
                for group, decay in ((matrices, weight_decay), (others, 0.0))
                for params in by_sharding(group)
            ],
            lr=self.lr,
            betas=(betas[0], betas[1]),
            eps=eps,
            fused=True,
        )
        # torch creates the state at the first step; creating it here keeps its names and shapes the same at all times.
        for p in parameters:
            self._adamw.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                **{m: torch.zeros_like(p, memory_format=torch.preserve_format) for m in MOMENTS},
            }

    def learning_rate(self, step: int, total_steps: int) -> float:
        return scheduled(self.lr, step, total_steps, warmup_steps=self.warmup_steps, final_fraction=self.final_fraction)

    def with_gradient(self) -> set[str]:
        """Return the names of the parameters that have a gradient."""
        return {n for n, p in self._parameters.items() if p.grad is not None}

    def live_gradients(self, names: Collection[str]) -> list[Tensor]:
        """Return the live gradients of these parameters, always in the same order; a missing gradient is set to
        zeros."""
        named = [p for n, p in self._parameters.items() if n in names]
        for p in named:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in named if p.grad is not None]

    def gradient_norm(self) -> float:
        """Return the norm of all gradients together, before clipping."""
        return norm(p.grad for p in self._parameters.values() if p.grad is not None)

    def step(self, *, lr: float, gradient_norm: float) -> None:
        """Scale the gradients down to `max_grad_norm` if their norm exceeds it, update the parameters, and clear the
        gradients."""
        for name, master in self._masters.items():
            parameter = self._parameters[name]
            if parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.float(), None
        stepped = self._parameters | self._masters
        if gradient_norm > self.max_grad_norm:  # else this would multiply all gradients by 1
            for tensors in by_sharding(stepped.values()):
                torch.nn.utils.clip_grads_with_norm_(tensors, self.max_grad_norm, torch.tensor(gradient_norm))
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        with torch.no_grad():
            for name, master in self._masters.items():
                self._parameters[name].copy_(master)
        self.zero_grad()

    def zero_grad(self) -> None:
        for tensor in (*self._parameters.values(), *self._masters.values()):
            tensor.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the live state by flat name (`<parameter>.exp_avg`, `.exp_avg_sq`, `.step`, and `.master` if there is
        a master), sharded like the parameters: save or clone it at once."""
        stepped = self._parameters | self._masters
        named = chain.from_iterable(_named(n, self._adamw.state[p]) for n, p in stepped.items())
        return dict(named) | {f"{n}.{MASTER}": master for n, master in self._masters.items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the full tensors of a `state_tensors` result. Raises CheckpointError, having loaded nothing, unless
        names, shapes and dtypes match."""
        own = self.state_tensors()
        if odd := sorted(own.keys() ^ tensors.keys()):
            raise CheckpointError(
                f"optimizer state: {len(odd)} names differ from this model's, such as {odd[0]!r}; resume with the same "
                f"model and the same trainable parameters"
            )
        for name, tensor in own.items():
            given = tensors[name]
            if given.shape != tensor.shape or given.dtype != tensor.dtype:
                raise CheckpointError(
                    f"optimizer state {name!r}: {tuple(given.shape)} {given.dtype}, but the model needs "
                    f"{tuple(tensor.shape)} {tensor.dtype}; resume with the same model and dtype"
                )
        for name, tensor in own.items():
            fill(tensor, tensors[name])


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum: each 2-D parameter moves along UV^T, where U S V^T is its Nesterov momentum.

    Keller Jordan, "Muon: an optimizer for hidden layers" (2024), with his coefficients and learning-rate scale
    sqrt(max(1, rows / columns)); no weight decay. The iteration runs in fp32: the bfloat16 products of torch.optim.Muon
    are eighteen times slower on a CPU without bfloat16 instructions, and save little on one with them.
    """

    def __init__(self, params: ParamsT, *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                momentum = self.state[p]["momentum"]
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = _orthogonalised(p.grad.lerp(momentum, group["momentum"]).float())
                p.add_(update.to(p.dtype), alpha=-group["lr"] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))


def _orthogonalised(matrix: Tensor) -> Tensor:
    """Return approximately UV^T of `matrix` = U S V^T: five quintic Newton-Schulz steps, which bring the singular
    values near 1."""
    if matrix.shape[0] > matrix.shape[1]:
        return _orthogonalised(matrix.T).T
    a, b, c = 3.4445, -4.7750, 2.0315
    norm: Tensor = torch.linalg.vector_norm(matrix).clamp(min=1e-7)
    x = matrix / norm
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _named(parameter: str, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"{parameter}.{key}", state[key]) for key in (*MOMENTS, "step")]
