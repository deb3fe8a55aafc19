"""Going back in place: weights, optimizer and a moving reference are those of the checkpoint, whatever came after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import LoraSettings
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.models.loading import Start, open_policy
from agentgrpo.run.checkpoints import restore
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.reference import Reference, reference_state
from agentgrpo.training.trainer import Trainer
from tests.grpo.tiny import random_samples, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("kind", [{}, {"kind": "ema", "decay": 0.7}, {"kind": "periodic", "every": 1}], ids=str)
def test_what_is_done_again_from_there_is_the_same(tmp_path: Path, lora: bool, kind: dict[str, object]) -> None:
    Policy(model=tiny_model(), tokenizer=tiny_tokenizer()).save(tmp_path / "base")
    policy = load_policy(tmp_path / "base")
    if lora:
        add_adapter(policy.model, LoraSettings(rank=2), base=str(tmp_path / "base"), seed=0)
    reference = Reference(policy, **kind)  # type: ignore[arg-type]
    trainer = Trainer(
        policy=policy,
        reference=reference.policy,
        optimizer=AdamW(model=policy.model, lr=1e-2, warmup_steps=0),
        algorithm=Algorithm(kl_coef=0.1),
        total_steps=9,
    )

    def go(step: int, seed: int) -> list[torch.Tensor]:
        """All that the step leaves behind."""
        trainer.update(random_samples(seed), step=step)
        reference.after_update(step)
        of_reference = [p for _, p in reference.policy.model.named_parameters()]
        left = [*policy.model.parameters(), *trainer.optimizer.state_tensors().values(), *of_reference]
        return [t.detach().clone() for t in left]

    go(0, 0)
    store = CheckpointStore(run_dir=tmp_path / "run")
    saved = store.save(
        1,
        write_model=policy.save,
        tensors={**trainer.optimizer.state_tensors(), **reference_state(reference), "rng/x": torch.zeros(1)},
        state={"start": Start(tmp_path / "base").state()},
    )
    first = go(1, 1)
    go(2, 2)
    restore(trainer, reference, open_policy(saved, Hardware()), store.load(saved))
    again = go(1, 1)
    assert len(first) == len(again)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
