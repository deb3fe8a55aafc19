"""One whole update by TRL's own trainer, in whatever interpreter has TRL: completions and rewards as JSON in, the loss
and the gradient of every optimizer step out.

Nothing of TRL is replaced: the completions come in through its `rollout_func`, the rewards through its `reward_funcs`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import torch
import trl
from safetensors.torch import save_file
from transformers import AutoTokenizer, TrainerCallback


class Seen(trl.GRPOTrainer):  # type: ignore[misc]
    """What each of its training steps returns."""

    losses: list[float]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class Gradients(TrainerCallback):  # type: ignore[misc]
    def __init__(self, out: Path) -> None:
        self.out, self.steps = out, 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        save_file({name: grad.contiguous() for name, grad in found.items()}, self.out / f"{self.steps}.safetensors")
        self.steps += 1


def exact(model: Any) -> None:
    """Norms in float64: those of transformers round to float32."""
    assert model.dtype == torch.float64
    for name, module in list(model.named_modules()):
        if name.endswith("norm"):
            norm = torch.nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            model.set_submodule(name, norm)


def update(model: Path, out: Path, groups: list[list[dict[str, Any]]], settings: dict[str, Any]) -> list[float]:
    """The losses. `groups`: {prompt, completion, env_mask, logprobs, reward} of each episode; an episode is found again
    by its prompt's text, which is the number of its group."""
    out.mkdir()
    rows = [row for group in groups for row in group]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        taken = [0] * len(groups)
        found = []
        for number in map(int, prompts):
            found.append(groups[number][taken[number]])
            taken[number] += 1
        return {
            "prompt_ids": [row["prompt"] for row in found],
            "completion_ids": [row["completion"] for row in found],
            "env_mask": [row["env_mask"] for row in found],
            "logprobs": [row["logprobs"] for row in found],
            "paid": [row["reward"] for row in found],
        }

    seen = Gradients(out)
    trainer = Seen(
        model=str(model),
        reward_funcs=lambda paid, **_: paid,
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            model_init_kwargs={"dtype": "auto"},
            per_device_train_batch_size=len(rows),
            num_generations=len(groups[0]),
            max_steps=settings["num_iterations"],
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            shuffle_dataset=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": [str(number) for number in range(len(groups))]}),
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout,
        callbacks=[seen],
    )
    for policy in filter(None, (trainer.model, trainer.ref_model)):
        exact(policy)
    trainer.losses = []
    trainer.train()
    return trainer.losses


if __name__ == "__main__":
    datasets.disable_progress_bars()
    torch.set_default_dtype(torch.float64)
    given = json.load(sys.stdin)
    stdout, sys.stdout = sys.stdout, sys.stderr
    folder = Path(given["out"])
    losses = {
        name: update(Path(given["model"]), folder / name, given["groups"], settings)
        for name, settings in given["cases"].items()
    }
    print(json.dumps(losses), file=stdout)
