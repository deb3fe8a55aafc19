"""Checkpoints of a run: when one is made and of what, which of them are good, and the way back to one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentgrpo.core.errors import CheckpointError, GuardHalt, GuardRollback, TrainingError
from agentgrpo.run.context import RunContext
from agentgrpo.run.parts import RNG, Parts, Progress, of_optimizer
from agentgrpo.run.recording import note_seconds
from agentgrpo.training.checkpoint import LoadedCheckpoint
from agentgrpo.training.policy import Policy
from agentgrpo.training.precision import first_non_finite
from agentgrpo.training.process_group import agree, once
from agentgrpo.training.reference import Reference, reference_state
from agentgrpo.training.sharding import fill, gathered
from agentgrpo.training.trainer import Trainer


def _state(parts: Parts, progress: Progress) -> dict[str, Any]:
    return {
        **parts.fixed_state,
        "step": progress.step,
        "skipped_in_a_row": progress.skipped_in_a_row,
        "guards": parts.guards.state(),
        "rollbacks": progress.rollbacks,
        "good_step": progress.good_step,
        "unproven_steps": progress.unproven_steps,
        "needs": [*([] if progress.good_step is None else [progress.good_step]), *progress.unproven_steps],
        "dev": progress.dev,
        "dev_step": progress.dev_step,
        "cursor": parts.order.cursor(progress.step),
        "carried": progress.state.state(),
        "logs": parts.metrics.logs(),
    }


def is_due(parts: Parts, progress: Progress) -> bool:
    """Whether the step that comes next begins with a checkpoint, whoever stops or resumes the run in between."""
    every, step = parts.run.checkpoint_every, progress.step
    return bool(every) and (step % every == 0 or progress.dev_step == step)


def save(parts: Parts, progress: Progress, ctx: RunContext) -> None:
    """Checkpoint at a step boundary, with no episode in flight. Raises TrainingError, having written nothing, for
    weights or an optimizer state that are not finite."""
    began = time.monotonic()
    world, first = parts.world, parts.world.rank == 0
    ctx.at(f"the checkpoint before step {progress.step}")
    model, optimizer = parts.trainer.policy.model.state_dict(), parts.trainer.optimizer.state_tensors()
    if odd := first_non_finite({**model, **optimizer}):
        raise TrainingError(f"step {progress.step}: {odd} is not finite; no checkpoint is made of it")
    if parts.guards.can_roll_back and is_due(parts, progress):
        progress.unproven_steps = sorted({*progress.unproven_steps, progress.step})
    score = progress.dev["dev/reward"] if progress.dev_step == progress.step else None

    weights, optimizer = gathered(model, keep=first), gathered(optimizer, keep=first)

    def write_model(folder: Path) -> None:
        parts.trainer.policy.save(folder, weights)
        (folder / "README.md").write_text(parts.card(progress.step, progress.last_tags), encoding="utf-8")

    def write() -> None:
        parts.store.save(
            progress.step,
            write_model=write_model,
            tensors={
                **optimizer,
                **reference_state(parts.reference),
                RNG: torch.get_rng_state(),
                **progress.state.tensors(),
            },
            state=_state(parts, progress),
            score=score,
        )

    once(world, write)
    progress.saved_step = progress.step
    note_seconds(parts, progress.step, {"time/checkpoint": time.monotonic() - began})


# --- Back to the last good checkpoint: its weights and its optimizer, not its time. Steps, tasks and random numbers go
# on, so that what went wrong is not simply done again.


def roll_back(parts: Parts, progress: Progress, reason: GuardRollback) -> dict[str, float]:
    """Restore the last good checkpoint; returns the tags of the step that is given up for it. Raises GuardHalt, having
    changed nothing, where there is none or run.max_rollbacks are used up; CheckpointError for one that is damaged."""
    good, most = progress.good_step, parts.run.max_rollbacks
    if good is None:
        raise GuardHalt(f"{reason}. No checkpoint before it is known to be good, so the run halts here")
    if progress.rollbacks >= most:
        raise GuardHalt(
            f"{reason}. The run went back {most} times already (run.max_rollbacks={most}) and halts here; to go on, "
            "resume it with more"
        )
    progress.is_unrecorded = True
    parts.restore(agree(parts.world, partial(parts.store.load, parts.store.path(good))))
    progress.rollbacks += 1
    progress.skipped_in_a_row = 0
    progress.unproven_steps = []
    parts.screen.line(f"{reason}. Weights and optimizer are those of step {good} again")
    return {"skipped": 1.0, "guard/rollback": 1.0, "guard/rolled_back_to": float(good)}


def restore(trainer: Trainer, reference: Reference | None, saved: Policy, checkpoint: LoadedCheckpoint) -> None:
    """The live weights, the optimizer's state and the reference become those of `checkpoint`, whose weights `saved`
    holds, in place."""
    live, kept = (dict(policy.model.named_parameters()) for policy in (trainer.policy, saved))
    if live.keys() != kept.keys():
        raise CheckpointError(f"{checkpoint.path} holds another model; start anew in another run.dir")
    for name, parameter in live.items():
        fill(parameter, kept[name])
    trainer.optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
    if reference is not None:
        reference.load_state_tensors(checkpoint.tensors)


def judge_checkpoints(parts: Parts, progress: Progress, step: int, tags: Mapping[str, float]) -> None:
    """After `step` was closed: a checkpoint is good once a step that sampled from its weights brought no guard that
    rolls back beyond its limit. A skipped step says nothing of the weights."""
    if "skipped" in tags:
        return
    newest = step - parts.trainer.algorithm.max_staleness if parts.guards.is_calm else -1
    progress.good_step = max((s for s in progress.unproven_steps if s <= newest), default=progress.good_step)
    progress.unproven_steps = [s for s in progress.unproven_steps if s > newest] if parts.guards.is_calm else []
