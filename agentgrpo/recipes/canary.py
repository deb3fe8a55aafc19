"""After every weight sync: do the engine and the trainer hold the same weights?"""

from __future__ import annotations

from agentgrpo.engines.base import Engine
from agentgrpo.errors import TrainingError
from agentgrpo.training.trainer import Trainer

TOLERANCE = 1e-2
"""Nats. Far above numerical noise (1e-5 in fp32, a few 1e-3 in bf16), far below what one update changes."""


async def refuse_stale_weights(engine: Engine, trainer: Trainer, step: int) -> dict[str, float]:
    """Score one fixed prompt on both sides; raise TrainingError above TOLERANCE. Returns the gap as a tag."""
    ids = trainer.canary_ids
    expected, found = trainer.score(ids), await engine.score(ids)
    gap = max(abs(a - b) for a, b in zip(expected, found, strict=True))
    if not gap <= TOLERANCE:
        raise TrainingError(
            f"after step {step} the engine's log-probs differ from the trainer's by {gap:.3g} nats on a fixed prompt "
            f"(allowed: {TOLERANCE}); the engine samples from stale or damaged weights: check its weight sync"
        )
    return {"policy/canary_gap": gap}
