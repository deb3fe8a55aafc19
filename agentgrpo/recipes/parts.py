"""What a training run is made of, and what changes from step to step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgrpo.agents.base import Agent
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.metering import Meter
from agentgrpo.recipes.carried import Carried
from agentgrpo.recipes.diagnostics import Unwatched, Watch
from agentgrpo.recipes.guards import Guards
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.rewards.reward import Reward
from agentgrpo.settings import RolloutSettings, RunSettings
from agentgrpo.stages import Clock, NoClock
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.reference import Reference
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.world import Alone, World
from agentgrpo.types import ScoredGroup

DevScore = Callable[[int], Coroutine[Any, Any, dict[str, float]]]
"""(completed updates) -> tags of an evaluation on the dev split, "dev/reward" among them."""


RNG = "rng/torch_cpu"
"""Name of torch's generator state among a checkpoint's tensors. Nothing of ours draws from it; a user's part may."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a run is made of, built once."""

    order: TaskOrder
    agent: Agent
    agent_name: str
    engine: Engine
    reward: Reward
    trainer: Trainer
    run: RunSettings
    rollout: RolloutSettings
    sampling: SamplingParams
    store: CheckpointStore
    metrics: MetricsLog
    trackers: Trackers
    screen: Screen
    guards: Guards
    canary_ids: tuple[int, ...]
    """A fixed prompt that engine and trainer must score alike after every weight sync."""
    restore: Callable[[LoadedCheckpoint], None]
    """Weights, optimizer and reference become a checkpoint's."""
    reference: Reference | None
    """What the trainer's KL term is measured against, where it has one."""
    dev_score: DevScore
    show: Callable[[Sequence[ScoredGroup]], None]
    """Puts a trajectory of the step on the screen."""
    card: Callable[[int, Mapping[str, float]], str]
    """(step, last tags) -> text of the checkpoint's model card."""
    fixed_state: Mapping[str, Any]
    """What every checkpoint says of its run: config, fingerprints, versions."""
    meter: Meter | None = None
    """What calls to services outside go through."""
    clock: Clock = field(default_factory=NoClock)
    """The one that `engine`, `agent` and `trainer` are observed with; see run.profile."""
    watch: Watch = field(default_factory=Unwatched)
    """Notices when a step takes too long, or the event loop; see run.watchdog_s."""
    world: World = field(default_factory=Alone)
    """The processes of the run. `metrics`, `trackers` and `screen` do something on the first of them only; see
    together.only_first."""


@dataclass(kw_only=True)
class Progress:
    """What changes from step to step and is part of every checkpoint."""

    step: int = 0
    """Steps done, skipped ones included."""
    skipped_in_a_row: int = 0
    dev: dict[str, float] = field(default_factory=dict)
    """Tags of the last dev evaluation, of the weights that step `dev_step` begins with; they go into its row."""
    dev_step: int | None = None
    last_tags: dict[str, float] = field(default_factory=dict)
    saved_step: int | None = None
    good_step: int | None = None
    """The checkpoint that guards go back to; kept up only where one of them may."""
    unproven_steps: list[int] = field(default_factory=list)
    """Newer checkpoints, whose weights no finished step has sampled from yet."""
    rollbacks: int = 0
    weights_ahead: bool = False
    """The weights hold an update that metrics.jsonl does not."""
    carried: Carried = field(default_factory=Carried)
    """What step `step` begins with, besides the weights."""
    coming: Carried = field(default_factory=Carried)
    """What the one after it will; it becomes `carried` with the step's record."""

    @classmethod
    def restored(cls, checkpoint: LoadedCheckpoint) -> Progress:
        """As it was when the checkpoint was saved (recipes.saving)."""
        state = checkpoint.state
        return cls(
            step=checkpoint.step,
            skipped_in_a_row=state["skipped_in_a_row"],
            good_step=state["good_step"],
            unproven_steps=state["unproven_steps"],
            rollbacks=state["rollbacks"],
            dev=state["dev"],
            dev_step=state["dev_step"],
            saved_step=checkpoint.step,
            carried=Carried.restored(state["carried"], checkpoint.tensors),
        )
