"""TRL's own loss code on given tensors, in whatever interpreter has TRL: cases as JSON in, losses and gradients out.

A case holds `trl` (attributes of the trainer), `args` (of its GRPOConfig), `inputs` (tensors as nested lists, as
`GRPOTrainer._compute_loss` reads them), and the policy's `logprobs` and `entropies` [B, T]. Only what loads a model is
left out: these two come from the case instead, and the world is one process.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch


def evaluate(case: dict[str, Any]) -> dict[str, Any]:
    """{"loss": float, "gradient": [B][T]} of one case."""
    from trl import GRPOTrainer

    logprobs, entropies = torch.tensor(case["logprobs"], requires_grad=True), torch.tensor(case["entropies"])
    trainer = object.__new__(GRPOTrainer)
    one_process = SimpleNamespace(
        num_processes=1,
        gather=lambda x: x,
        reduce=lambda x, reduction: x,
        pad_across_processes=lambda x, dim, pad_index: x,
    )
    for name, value in {
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logprobs, entropies, None),
        "_metrics": {"train": defaultdict(list)},
        "_entropy_bonus_enabled": False,
        "accelerator": one_process,
        "args": SimpleNamespace(**case["args"]),
        "aux_loss_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "model": SimpleNamespace(training=True),
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        **case["trl"],
    }.items():
        setattr(trainer, name, value)
    tensors = {name: torch.tensor(value) for name, value in case["inputs"].items()}
    loss = trainer._compute_loss(trainer.model, tensors)
    [gradient] = torch.autograd.grad(loss, logprobs)
    return {"loss": loss.item(), "gradient": gradient.tolist()}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    print(json.dumps([evaluate(case) for case in json.load(sys.stdin)]))
