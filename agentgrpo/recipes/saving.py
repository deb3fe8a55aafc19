"""What a run writes down between its steps: clocks, profile, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from agentgrpo.recipes.parts import RNG, Parts, Progress


def note_seconds(parts: Parts, step: int, seconds: Mapping[str, float]) -> None:
    parts.metrics.clock(step, seconds)
    parts.trackers.log(seconds, step=step)


def note_profile(parts: Parts, step: int) -> dict[str, float]:
    """Write down where the time went since the step before was written down, and return it as tags: what came before
    the step (evaluation, checkpoint) is part of its row, what comes after the last one is in none."""
    seconds = parts.clock.lap()
    tags = {f"time/profile/{name}": value for name, value in seconds.items()}
    if seconds:
        parts.metrics.profile(step, seconds)
        parts.trackers.log(tags, step=step)
    return tags


def save(parts: Parts, progress: Progress) -> None:
    """Checkpoint at a step boundary, with no episode in flight."""
    began = time.monotonic()
    score = progress.dev["dev/reward"] if progress.dev_step == progress.step else None

    def write_model(folder: Path) -> None:
        parts.trainer.policy.save(folder)
        (folder / "README.md").write_text(parts.card(progress.step, progress.last_tags), encoding="utf-8")

    parts.store.save(
        progress.step,
        write_model=write_model,
        tensors={**parts.trainer.optimizer.state_tensors(), RNG: torch.get_rng_state()},
        state={
            **parts.fixed_state,
            "step": progress.step,
            "skipped_in_a_row": progress.skipped_in_a_row,
            "dev": progress.dev,
            "dev_step": progress.dev_step,
            "cursor": parts.order.cursor(progress.step),
            "offsets": parts.metrics.offsets(),
        },
        score=score,
    )
    progress.saved_step = progress.step
    note_seconds(parts, progress.step, {"time/checkpoint": time.monotonic() - began})
