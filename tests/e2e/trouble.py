"""A run in which trouble comes at chosen steps, and which may be killed at a chosen instant.

    python -m tests.e2e.trouble 3,4 INSTANT train ...      trouble in steps 3 and 4; INSTANT: one of INSTANTS, or none

The rollout's tag test/trouble is 1 in these steps and 0 in all others.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from agentgrpo.cli.main import main
from agentgrpo.run import train
from agentgrpo.run.train import StepSamples, samples_of
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.update_metrics import UpdateMetrics

Place = Callable[[object, str, object], None]
"""As setattr and monkeypatch.setattr are."""


def trouble_at(steps: Collection[int], place: Place, *, late: bool = False) -> None:
    """late: the tag is one of the optimizer step, not of the rollout."""

    def troubled_samples(parts: Any, step: int, *rest: Any) -> StepSamples:
        chosen = samples_of(parts, step, *rest)
        return replace(chosen, tags={**chosen.tags, "test/trouble": float(step in steps)})

    def troubled_update(self: Trainer, samples: Any, *, step: int, guard: Any) -> UpdateMetrics:
        return update(self, samples, step=step, guard=lambda tags: guard({**tags, "test/trouble": step in steps}))

    update = Trainer.update
    if late:
        place(Trainer, "update", troubled_update)
    else:
        place(train, "samples_of", troubled_samples)


def kill_at(instant: str) -> None:
    """SIGKILL right before or right after the run's first rollback, or the record or the checkpoint after it."""
    when, _, name = instant.partition(" ")
    rolled_back = False
    original = {"rollback": train.roll_back, "judgement": train.judge_checkpoints, "checkpoint": train.save}[name]

    def killing(*arguments: Any) -> Any:
        nonlocal rolled_back
        due = name == "rollback" or rolled_back
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def noting(*arguments: Any) -> Any:
        nonlocal rolled_back
        rolled_back = True
        return roll_back(*arguments)

    roll_back = train.roll_back
    train.roll_back = noting  # type: ignore[assignment]
    setattr(train, {"rollback": "roll_back", "judgement": "judge_checkpoints", "checkpoint": "save"}[name], killing)


if __name__ == "__main__":
    steps, instant, *arguments = sys.argv[1:]
    torch.manual_seed(0)  # a checkpoint holds the generator's state, whatever it began with
    trouble_at({int(step) for step in steps.split(",")}, setattr)
    if instant != "none":
        kill_at(instant)
    sys.exit(main(arguments))
