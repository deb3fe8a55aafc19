"""Back to the last good checkpoint: its weights and its optimizer, not its time. Steps, tasks and random numbers go on,
so that what went wrong is not simply done again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from agentgrpo.core.errors import CheckpointError, GuardHalt, GuardRollback
from agentgrpo.run.parts import Parts, Progress, of_optimizer
from agentgrpo.training.checkpoint import LoadedCheckpoint
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import agree
from agentgrpo.training.reference import Reference
from agentgrpo.training.sharding import fill
from agentgrpo.training.trainer import Trainer


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
    progress.weights_ahead = True
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
