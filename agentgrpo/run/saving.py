"""What a run writes down between its steps: clocks, profile, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from agentgrpo.core.errors import TrainingError
from agentgrpo.rollout.metrics import rollout_clocks
from agentgrpo.run.parts import RNG, Parts, Progress
from agentgrpo.run.rollouts import RolledOut
from agentgrpo.training.precision import first_non_finite
from agentgrpo.training.process_group import once
from agentgrpo.training.reference import reference_state
from agentgrpo.training.sharding import gathered


def note_seconds(parts: Parts, step: int, seconds: Mapping[str, float]) -> None:
    parts.metrics.clock(step, seconds)
    parts.trackers.log(seconds, step=step)


def step_seconds(rolled: RolledOut, tags: Mapping[str, float], *, update_s: float) -> dict[str, float]:
    """The clocks of a step whose tags these are."""
    clocks = rollout_clocks(rolled.scored)
    seconds = dict(rolled.seconds) | {"time/train": update_s, "time/tools": clocks["time_tools"]}
    seconds |= {f"time/episode/{name}": value for name, value in clocks.items()}
    seconds["throughput/sampled_tokens_per_s"] = tags.get("tokens/sampled", 0.0) / max(seconds["time/generation"], 1e-9)
    return seconds


def note_profile(parts: Parts, step: int) -> dict[str, float]:
    """Write down where the time went since the step before was written down, and return it as tags: what came before
    the step (evaluation, checkpoint) is part of its row, what comes after the last one is in none."""
    seconds = parts.clock.lap()
    tags = {f"time/profile/{name}": value for name, value in seconds.items()}
    if seconds:
        parts.metrics.profile(step, seconds)
        parts.trackers.log(tags, step=step)
    return tags


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
        "carried": progress.carried.state(),
        "offsets": parts.metrics.offsets(),
    }


def is_due(parts: Parts, progress: Progress) -> bool:
    """Whether the step that comes next begins with a checkpoint, whoever stops or resumes the run in between."""
    every, step = parts.run.checkpoint_every, progress.step
    return bool(every) and (step % every == 0 or progress.dev_step == step)


def save(parts: Parts, progress: Progress) -> None:
    """Checkpoint at a step boundary, with no episode in flight. Raises TrainingError, having written nothing, for
    weights or an optimizer state that are not finite."""
    began = time.monotonic()
    world, first = parts.world, parts.world.rank == 0
    world.phase = f"the checkpoint before step {progress.step}"
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
                **progress.carried.tensors(),
            },
            state=_state(parts, progress),
            score=score,
        )

    once(world, write)
    progress.saved_step = progress.step
    note_seconds(parts, progress.step, {"time/checkpoint": time.monotonic() - began})
