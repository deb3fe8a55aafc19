"""The second half of a step: scored groups to new weights."""

from __future__ import annotations

from pathlib import Path
from statistics import pstdev

from agentgrpo.grpo.samples import group_advantages, to_samples
from agentgrpo.recipes.parts import Parts
from agentgrpo.recipes.rolling import RolledOut
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rollout import keep_informative, refuse_failures, rollout_metrics
from agentgrpo.stages import Stage


def learn(parts: Parts, step: int, rolled: RolledOut) -> dict[str, float]:
    """Record the rollout, then update the weights from what is informative; returns the step's tags."""
    kept, reasons = keep_informative(rolled.scored)
    advantages = group_advantages(rolled.scored, parts.trainer.algorithm.advantages)
    with parts.clock.stage(Stage.RECORDS):
        write_trajectories(
            Path(parts.run.dir) / "trajectories" / f"train-{step:06d}.jsonl",
            scored=rolled.scored,
            advantages=advantages,
            dropped=reasons,
            step=step,
            seed=parts.run.seed,
            agent_name=parts.agent_name,
            record_tokens=parts.run.record_tokens,
        )
        tags = rollout_metrics(rolled.scored, reasons, parts.run.eval.prices)
    refuse_failures(rolled.scored, max_error_fraction=parts.run.max_error_fraction)
    used = [a for a, reason in zip(advantages, reasons, strict=True) if reason is None]
    samples = to_samples(kept, used)
    credited = [a for group in used for a in group if a is not None]
    tags["advantages/std"] = pstdev(credited) if credited else 0.0
    return tags | parts.trainer.update(samples, step=step).tags()
