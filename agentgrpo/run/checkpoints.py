"""Checkpoints of a run: when one is saved, what it holds, which ones are known to be good, and how to roll back."""

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
    """Return whether the next step begins with a checkpoint; the answer is the same for a resumed run."""
    every, step = parts.run.checkpoint_every, progress.step
    return bool(every) and (step % every == 0 or progress.dev_step == step)


def save(parts: Parts, progress: Progress, ctx: RunContext) -> None:
    """Save a checkpoint at a step boundary, with no episode in flight. Raises TrainingError, before anything is
    written, if weights or optimizer state are not finite."""
    began = time.monotonic()
    world, first = parts.world, parts.world.rank == 0
    ctx.at(f"the checkpoint before step {progress.step}")
    model, optimizer = parts.trainer.policy.model.state_dict(), parts.trainer.optimizer.state_tensors()
    if odd := first_non_finite({**model, **optimizer}):
        raise TrainingError(f"step {progress.step}: {odd} is not finite; no checkpoint is written")
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


# --- Rolling back restores weights and optimizer of the last good checkpoint, but not its step: steps, tasks and random
# numbers go on, so the failure is not simply repeated.


def roll_back(parts: Parts, progress: Progress, reason: GuardRollback) -> dict[str, float]:
    """Restore the last good checkpoint; returns the tags of the step that is given up. Raises GuardHalt, having changed
    nothing, if no good checkpoint exists or run.max_rollbacks is used up; CheckpointError if it is damaged."""
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
    """Restore the live weights, optimizer state and reference from `checkpoint`, in place. saved: the policy loaded
    from that checkpoint."""
    live, kept = (dict(policy.model.named_parameters()) for policy in (trainer.policy, saved))
    if live.keys() != kept.keys():
        raise CheckpointError(f"{checkpoint.path} holds another model; start anew in another run.dir")
    for name, parameter in live.items():
        fill(parameter, kept[name])
    trainer.optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
    if reference is not None:
        reference.load_state_tensors(checkpoint.tensors)


def judge_checkpoints(parts: Parts, progress: Progress, step: int, tags: Mapping[str, float]) -> None:
    """Update the good checkpoints after `step` was closed. A checkpoint is good once a step has sampled from its
    weights without a rollback guard beyond its limit. A skipped step is no evidence about the weights."""
    if "skipped" in tags:
        return
    newest = step - parts.trainer.algorithm.max_staleness if parts.guards.is_calm else -1
    progress.good_step = max((s for s in progress.unproven_steps if s <= newest), default=progress.good_step)
    progress.unproven_steps = [s for s in progress.unproven_steps if s > newest] if parts.guards.is_calm else []
