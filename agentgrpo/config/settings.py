"""Settings that belong to no single part: plain typed data, built from the YAML groups `run` and `rollout` and
the node `model.lora`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentgrpo.core.errors import ConfigError


def _require(group: str, settings: object, **least: float) -> None:
    """Raise ConfigError for the first key under its least value."""
    for key, bound in least.items():
        value = getattr(settings, key)
        if not value >= bound:
            raise ConfigError(f"{group}.{key}={value}; {bound} or more is allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """The `run.eval` node: how policies are compared on held-out tasks."""

    tasks: int = 500
    """Test tasks, counted from the start of the split."""
    samples_per_task: int = 1
    """Episodes per task at `temperature` (pass@k needs several)."""
    temperature: float = 1.0
    margin: float = 0.02
    """Largest loss of correctness that still counts as "not lower" (non-inferiority)."""
    min_discrimination: float = 0.05
    """Correctness that the judge must give the policy's answers beyond what it gives answers to other questions."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of one call by its name, for the metric `cost` of what is asked for, paid or replayed. A name that is not
    here has its price in budget.prices, where there are any, else the agent's own (environments.base.Figures.prices);
    the same for every reward preset, so that runs compare."""

    def __post_init__(self) -> None:
        _require("run.eval", self, tasks=2, samples_per_task=1, temperature=0, margin=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The `run` group: how a run starts, is watched, saved and ends."""

    dir: str
    """Run directory."""
    seed: int = 0
    max_steps: int = 150
    """Optimizer updates; skipped steps count."""
    checkpoint_every: int = 25
    """Steps between checkpoints; 0 = none (then the run cannot be resumed)."""
    keep_last: int = 2
    """Newest checkpoints kept, at least 1."""
    keep_best: bool = True
    """Also keep the checkpoint with the best dev reward."""
    eval_every: int = 50
    """Steps between evaluations on the dev split; 0 = none."""
    eval_tasks: int = 100
    """Dev tasks per such evaluation."""
    eval: EvalSettings = field(default_factory=EvalSettings)
    final_eval: bool = True
    """Evaluate start and end weights on the test split when training is done."""
    step_timeout_s: float | None = 3600.0
    """A step whose episodes take longer is abandoned and counted; null = no limit."""
    watchdog_s: float | None = 600.0
    """A step that takes longer is asked what it is at, and again each time as long has passed. null = never."""
    max_loop_lag_s: float | None = 1.0
    """A tool, judge or retriever that holds up the event loop of a rollout for longer is named, once. null = never."""
    max_consecutive_skipped_steps: int = 3
    max_rollbacks: int = 3
    """Times that guards may send a run back to its last good checkpoint; the next time halts it."""
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
    profile: bool = False
    """Share out each step's wall time among its stages: profile.jsonl, time/profile/* on the boards, and a table at the
    end. It changes no result; on a GPU it waits for the device at every border of a stage, which costs a little."""

    def __post_init__(self) -> None:
        _require("run", self, max_steps=1, checkpoint_every=0, keep_last=1, eval_every=0, eval_tasks=2)
        _require("run", self, max_consecutive_skipped_steps=1, max_rollbacks=0, max_error_fraction=0, grace_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The `rollout` group: how many episodes, and how they are sampled."""

    tasks_per_step: int = 16
    group_size: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 512
    """Sampled tokens per turn."""
    max_concurrent_episodes: int = 256
    episode_retries: int = 1
    """Fresh attempts, with the same seed, at an episode whose infrastructure failed."""
    episode_timeout_s: float | None = None
    """Time limit of one episode; past it the episode fails as infrastructure. null = none."""
    stratify_by: str | None = None
    """Metadata key whose values every batch holds in equal shares, as far as possible."""
    refill_rounds: int = 0
    """Dynamic sampling: further rounds of a step at most, each with a task in the place of every one whose group taught
    nothing. 0 = none."""
    curriculum: Literal["none", "difficulty"] = "none"
    """difficulty: tasks are drawn by how often they were answered rightly so far, instead of all in turn."""
    curriculum_target: float = 0.5
    """Mean correctness of the tasks that are drawn most."""
    curriculum_memory: float = 0.5
    """Weight of what was known of a task when it is measured again; 0 = only the last group counts."""

    def __post_init__(self) -> None:
        _require("rollout", self, tasks_per_step=1, group_size=2, max_tokens=1, max_concurrent_episodes=1)
        _require("rollout", self, episode_retries=0, temperature=0, top_k=0, refill_rounds=0)
        if not (0 <= self.curriculum_target <= 1 and 0 <= self.curriculum_memory < 1):
            raise ConfigError(
                f"rollout.curriculum_target={self.curriculum_target}, curriculum_memory={self.curriculum_memory}; a "
                "target from 0 to 1 and a memory from 0 to below 1 are allowed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The `model.lora` node: an adapter that is trained instead of the model's own weights (training.adapters).

    There is no dropout: the trainer must score what the engine samples."""

    rank: int | None = None
    """Of each change; null = no adapter."""
    alpha: float = 32.0
    """A change counts alpha / rank times."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the linear layers that are changed, such as [q_proj, v_proj]; all-linear = all but the output layer."""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ConfigError(f"model.lora.rank={self.rank}; null (no adapter), or 1 or more is allowed")
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"model.lora.alpha={self.alpha}; a finite number > 0 is allowed")
        if not self.targets or (isinstance(self.targets, str) and self.targets != "all-linear"):
            raise ConfigError(
                f"model.lora.targets={self.targets!r}; allowed is all-linear, or a list of module names such as "
                "[q_proj,v_proj]"
            )
