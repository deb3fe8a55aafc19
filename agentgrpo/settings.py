"""Settings that belong to no single part: plain typed data, built from the YAML groups `run` and `rollout`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The `run` group: how a run starts, is watched, saved and ends."""

    dir: str
    """Run directory."""
    seed: int = 0
    max_steps: int = 120
    """Optimizer updates; skipped steps count."""
    checkpoint_every: int = 20
    """Steps between checkpoints; 0 = none (then the run cannot be resumed)."""
    keep_last: int = 2
    """Newest checkpoints kept, at least 1."""
    keep_best: bool = True
    """Also keep the checkpoint with the best dev reward."""
    eval_every: int = 40
    """Steps between evaluations on the dev split; 0 = none."""
    eval_tasks: int = 100
    """Dev tasks per such evaluation."""
    final_eval: bool = True
    """Evaluate start and end weights on the test split when training is done."""
    final_eval_tasks: int = 500
    step_timeout_s: float | None = 600.0
    """A step that takes longer is abandoned and counted; null = no limit."""
    max_consecutive_skipped_steps: int = 3
    max_error_fraction: float = 0.5
    """Share of a step's episodes that may fail for infrastructure reasons before the run stops."""
    grace_s: float = 20.0
    """Seconds after SIGTERM or Ctrl-C within which the run checkpoints and leaves."""
    log_with: tuple[str, ...] = ("tensorboard",)
    """accelerate trackers, where installed: tensorboard, wandb, mlflow, ..."""
    screen: str = "auto"
    """auto | live | plain | quiet."""
    record_tokens: bool = True
    """Write token ids, mask and logprobs into the trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The `rollout` group: how many episodes, and how they are sampled."""

    tasks_per_step: int = 16
    group_size: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 24
    """Sampled tokens per turn."""
    max_concurrent_episodes: int = 256
    episode_retries: int = 1
    """Fresh attempts, with the same seed, at an episode whose infrastructure failed."""
    episode_timeout_s: float | None = None
    """Time limit of one episode; past it the episode fails as infrastructure. null = none."""
    stratify_by: str | None = None
    """Metadata key whose values every batch holds in equal shares, as far as possible."""
