"""The parts of a training run, and the state that changes from step to step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.errors import CheckpointError
from agentgrpo.core.stages import Clock, NoClock
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, Exit, RewardResult, ScoredGroup, Task
from agentgrpo.core.untrusted import damaged
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.records.trajectories import pack, unpack
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rollout.demonstrations.base import Demonstrations
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.diagnostics import Unwatched, Watch
from agentgrpo.run.guards import Guards
from agentgrpo.services.meter import Meter
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone, ProcessGroup
from agentgrpo.training.reference import Reference
from agentgrpo.training.sharding import fill, whole
from agentgrpo.training.trainer import Trainer

# --- Groups kept for replay: reduced to the data that training needs, in memory and as JSON.


def kept_for_replay(
    replay: Sequence[ScoredGroup], groups: Sequence[ScoredGroup], limit: int
) -> tuple[ScoredGroup, ...]:
    """Return the newest `limit` groups, oldest first, after a step that trained on `groups`."""
    return (*replay, *map(_slim, groups))[-limit:] if limit else ()


def to_replay(replay: Sequence[ScoredGroup], count: int, *, taken: Collection[str]) -> list[ScoredGroup]:
    """Return up to `count` groups, newest first; none from a task in `taken`, and no task twice."""
    found: dict[str, ScoredGroup] = {}
    for group in reversed(replay):
        if group.group.task.id not in taken:
            found.setdefault(group.group.task.id, group)
    return list(found.values())[: max(0, count)]


def _slim(group: ScoredGroup) -> ScoredGroup:
    """Drop the parts that only readers and rewards need."""
    task = Task(id=group.group.task.id, messages=(), references=())
    episodes = [
        Episode(
            task=task,
            sample_index=e.sample_index,
            branches=tuple(Branch(segments=tuple(replace(s, text="") for s in b.segments)) for b in e.branches),
            answer=None,
            exit=e.exit,
            metrics={},
        )
        for e in group.group.episodes
    ]
    return ScoredGroup(group=EpisodeGroup(task=task, episodes=tuple(episodes)), rewards=group.rewards)


def to_json(group: ScoredGroup) -> dict[str, Any]:
    """Convert a group kept for replay to JSON; `from_json` restores an equal group."""
    return {
        "task": group.group.task.id,
        "episodes": [
            {
                "sample_index": episode.sample_index,
                "exit": episode.exit.value,
                "segments": [
                    {
                        "branch": i,
                        "role": s.role,
                        "sampled": s.sampled,
                        "num_tokens": len(s.token_ids),
                        "policy_version": s.policy_version,
                        "cut_short": s.cut_short,
                        "masked": s.masked,
                        **({"grammar": s.grammar} if s.grammar else {}),
                        "content": s.text,
                    }
                    for i, branch in enumerate(episode.branches)
                    for s in branch.segments
                ],
                "tokens": pack(episode.branches),
                "reward": None if reward is None else _lists(asdict(reward)),
            }
            for episode, reward in zip(group.group.episodes, group.rewards, strict=True)
        ],
    }


def from_json(row: Mapping[str, Any]) -> ScoredGroup:
    task = Task(id=row["task"], messages=(), references=())
    episodes = [
        Episode(
            task=task,
            sample_index=e["sample_index"],
            branches=unpack(e["segments"], e["tokens"]),
            answer=None,
            exit=Exit(e["exit"]),
            metrics={},
        )
        for e in row["episodes"]
    ]
    rewards = [None if e["reward"] is None else RewardResult(**_tuples(e["reward"])) for e in row["episodes"]]
    return ScoredGroup(group=EpisodeGroup(task=task, episodes=tuple(episodes)), rewards=tuple(rewards))


def _lists(value: Any) -> Any:
    """Convert tuples to lists, for JSON."""
    if isinstance(value, Mapping):
        return {k: _lists(v) for k, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, (list, tuple)) else value


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


# --- State that a step hands to the next one besides the weights, and its form in a checkpoint.

PREFIX = "sampler/"
"""Prefix for the sampler's weights among a checkpoint's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """State that a step begins with, besides the weights. It is immutable: a step makes a new one for the next step,
    which takes effect with the step's record."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Mean correctness by task, as far as measured: the curriculum uses it (tasks.order)."""
    replay: tuple[ScoredGroup, ...] = ()
    """The newest groups that were trained on, oldest first."""
    sampler: Mapping[str, Tensor] | None = None
    """For a rollout begun one step early: the weights that it samples from, those before the last update. None = the
    rollout begins when it is due, with the current weights."""

    def state(self) -> dict[str, Any]:
        return {"rates": dict(self.rates), "replay": [to_json(group) for group in self.replay]}

    def tensors(self) -> dict[str, Tensor]:
        return {PREFIX + name: tensor for name, tensor in (self.sampler or {}).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> StepState:
        """Restore from the output of `state` and `tensors`, which may be mixed with other entries."""
        sampler = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        return cls(
            rates=state["rates"],
            replay=tuple(from_json(group) for group in state["replay"]),
            sampler=sampler or None,
        )


def of_optimizer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's tensors of a checkpoint: the names of all others contain a slash."""
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def sampler_weights(policy: Policy) -> dict[str, Tensor]:
    """Copy all trainable weights to main memory."""
    return {n: whole(p.detach()).to("cpu", copy=True) for n, p in policy.model.named_parameters() if p.requires_grad}


@contextmanager
def with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the policy these weights inside the context, and its own weights back afterwards."""
    own = sampler_weights(policy)
    try:
        _set(policy, weights)
        yield
    finally:
        _set(policy, own)


@torch.no_grad()
def _set(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(policy.model.named_parameters())
    for name, tensor in weights.items():
        fill(parameters[name], tensor)


DevScore = Callable[[int], Coroutine[Any, Any, dict[str, float]]]
"""(completed updates) -> tags of an evaluation on the dev split, "dev/reward" among them."""


RNG = "rng/torch_cpu"
"""Name of torch's generator state among a checkpoint's tensors. Only a user's part may use that generator."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a training run, each built once."""

    order: TaskOrder
    runner: PolicyRunner
    engine: Engine
    reward: GroupReward
    trainer: Trainer
    run: RunSettings
    rollout: RolloutSettings
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    """Group size by member of a suite, if members have their own."""
    sampling: SamplingParams
    store: CheckpointStore
    metrics: MetricsLog
    trackers: Trackers
    screen: Screen
    guards: Guards
    canary_ids: tuple[int, ...]
    """A fixed prompt that engine and trainer must score alike after every weight sync."""
    restore: Callable[[LoadedCheckpoint], None]
    """Restores weights, optimizer and reference from a checkpoint."""
    reference: Reference | None
    """Reference policy for the trainer's KL term, if there is one."""
    dev_score: DevScore
    show: Callable[[Sequence[ScoredGroup]], None]
    """Shows a trajectory of the step on the screen."""
    card: Callable[[int, Mapping[str, float]], str]
    """(step, last tags) -> text of the checkpoint's model card."""
    fixed_state: Mapping[str, Any]
    """The part of every checkpoint that describes its run: config, fingerprints, versions."""
    demonstrations: Demonstrations | None = None
    """Demonstrations to imitate; None = the policy learns from its own episodes."""
    meter: Meter | None = None
    """Gate for all calls to external services."""
    clock: Clock = field(default_factory=NoClock)
    """For a profiled run: counts the calls of its episodes (core.stages.calling) and the trainer's update."""
    watch: Watch = field(default_factory=Unwatched)
    """Notices when a step or the event loop is too slow; see run.watchdog_s."""
    world: ProcessGroup = field(default_factory=Alone)
    """The processes of the run. `metrics`, `trackers` and `screen` are active in the first process only; see
    process_group.only_first."""


@dataclass(kw_only=True)
class Progress:
    """State that changes from step to step and is part of every checkpoint."""

    step: int = 0
    """Steps done, skipped ones included."""
    cpu_s: float = 0.0
    """CPU seconds of these steps: a clock, which no checkpoint holds (run.cpu_seconds)."""
    skipped_in_a_row: int = 0
    dev: dict[str, float] = field(default_factory=dict)
    """Tags of the last dev evaluation, which used the weights that step `dev_step` begins with; part of its row."""
    dev_step: int | None = None
    last_tags: dict[str, float] = field(default_factory=dict)
    saved_step: int | None = None
    good_step: int | None = None
    """The checkpoint that a rollback restores; tracked only if a guard may roll back."""
    unproven_steps: list[int] = field(default_factory=list)
    """Newer checkpoints from whose weights no finished step has sampled yet."""
    rollbacks: int = 0
    is_unrecorded: bool = False
    """Whether the weights hold an update that metrics.jsonl does not."""
    state: StepState = field(default_factory=StepState)
    """State that step `step` begins with."""
    next_state: StepState = field(default_factory=StepState)
    """State for the step after it; it becomes `state` with the step's record."""
    told: set[str] = field(default_factory=set)
    """Kinds of failures already reported in a line; not part of checkpoints."""

    @property
    def dev_tags(self) -> Mapping[str, float]:
        """Tags of the dev evaluation before step `step`, if there was one."""
        return self.dev if self.dev_step == self.step else {}

    def close_step(self, tags: dict[str, float]) -> None:
        """Close step `step`, recorded with these tags."""
        self.step, self.last_tags, self.is_unrecorded = self.step + 1, tags, False
        self.state = self.next_state

    @classmethod
    def restored(cls, checkpoint: LoadedCheckpoint) -> Progress:
        """Restore the progress from a checkpoint (run.checkpoints). Raises CheckpointError if it is malformed."""
        state = checkpoint.state
        with damaged(checkpoint.path, CheckpointError):
            steps = [state["good_step"], state["dev_step"], *state["unproven_steps"]]
            counts = [state["skipped_in_a_row"], state["rollbacks"], *(step for step in steps if step is not None)]
            if not all(isinstance(n, int) for n in counts) or not isinstance(state["dev"], dict):
                raise ValueError("a step or a count is no number, or dev is no object")
            return cls(
                step=checkpoint.step,
                skipped_in_a_row=state["skipped_in_a_row"],
                good_step=state["good_step"],
                unproven_steps=state["unproven_steps"],
                rollbacks=state["rollbacks"],
                dev=state["dev"],
                dev_step=state["dev_step"],
                saved_step=checkpoint.step,
                state=StepState.restored(state["carried"], checkpoint.tensors),
            )
