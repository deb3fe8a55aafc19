"""The training run: the one flow, step by step, durable.

    TaskDataset -> [Task] -> [EpisodeGroup] -> [ScoredGroup] -> record -> keep informative -> advantages
                -> [TrainingSample] -> update -> new weights -> engine -> canary -> metrics -> checkpoint

A step is a pure function of the weights before it and of its number: one that was interrupted is simply done again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import pstdev
from typing import Any

import torch

from agentgrpo.agents.base import Agent
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.errors import TooManyFailures, TrainingError
from agentgrpo.grpo.samples import group_advantages, to_samples
from agentgrpo.recipes.alarms import Alarms
from agentgrpo.recipes.canary import refuse_stale_weights
from agentgrpo.recipes.signals import StopRequest
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rewards.reward import Reward
from agentgrpo.rollout import (
    keep_informative,
    refuse_failures,
    rollout_clocks,
    rollout_metrics,
    run_groups,
    score_groups,
)
from agentgrpo.settings import RolloutSettings, RunSettings
from agentgrpo.stages import Clock, NoClock, Stage
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.training.trainer import Trainer
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
    alarms: Alarms
    canary_ids: tuple[int, ...]
    """A fixed prompt that engine and trainer must score alike after every weight sync."""
    dev_score: DevScore
    show: Callable[[Sequence[ScoredGroup]], None]
    """Puts a trajectory of the step on the screen."""
    card: Callable[[int, Mapping[str, float]], str]
    """(step, last tags) -> text of the checkpoint's model card."""
    fixed_state: Mapping[str, Any]
    """What every checkpoint says of its run: config, fingerprints, versions."""
    clock: Clock = field(default_factory=NoClock)
    """The one that `engine`, `agent` and `trainer` are observed with; see run.profile."""


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
    weights_ahead: bool = False
    """The weights hold an update that metrics.jsonl does not."""


@dataclass(frozen=True, kw_only=True)
class RolledOut:
    """What one step's rollout brings."""

    scored: Sequence[ScoredGroup]
    seconds: Mapping[str, float]


async def roll_out(parts: Parts, step: int) -> RolledOut:
    """Tasks of the step to scored groups. Raises TooManyFailures; cancelled, it stops everything it started."""
    began = time.monotonic()
    with parts.clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION, Stage.TOOLS)):
        groups = await run_groups(
            parts.agent,
            parts.order.take(step),
            group_size=parts.rollout.group_size,
            stream=f"train/{step}",
            sampling=parts.sampling,
            max_concurrent_episodes=parts.rollout.max_concurrent_episodes,
            episode_timeout_s=parts.rollout.episode_timeout_s,
            episode_retries=parts.rollout.episode_retries,
        )
    rolled = time.monotonic()
    with parts.clock.stage(Stage.REWARD):
        scored = await score_groups(parts.reward, groups)
    return RolledOut(
        scored=scored, seconds={"time/generation": rolled - began, "time/reward": time.monotonic() - rolled}
    )


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
    tags["advantages/std"] = pstdev([s.advantage for s in samples]) if samples else 0.0
    return tags | parts.trainer.update(samples, step=step).tags()


async def one_step(parts: Parts, progress: Progress, stop: StopRequest) -> dict[str, float]:
    """One step's tags; afterwards the weights are updated, and only then. A stop request abandons the rollout
    (Preempted); past run.step_timeout_s it is a TimeoutError."""
    step = progress.step
    rolled = await stop.unless_stopped(asyncio.wait_for(roll_out(parts, step), parts.run.step_timeout_s))
    began = time.monotonic()
    progress.weights_ahead = True
    try:
        tags = learn(parts, step, rolled)
    except TrainingError:  # a refused update has changed nothing
        progress.weights_ahead = False
        raise
    clocks = rollout_clocks(rolled.scored)
    seconds = dict(rolled.seconds) | {"time/train": time.monotonic() - began, "time/tools": clocks["time_tools"]}
    seconds |= {f"time/episode/{name}": value for name, value in clocks.items()}
    seconds["throughput/sampled_tokens_per_s"] = tags.get("tokens/sampled", 0.0) / max(seconds["time/generation"], 1e-9)
    with parts.clock.stage(Stage.RECORDS):
        note_seconds(parts, step, seconds)
        parts.show(rolled.scored)
    return tags


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


async def advance(parts: Parts, progress: Progress, stop: StopRequest) -> None:
    """One step more, skipped or not. Between its update and its record the weights are ahead of the files, and no
    checkpoint may be taken: what fails there (a stale engine, a full disk) ends the run at the last checkpoint."""
    step = progress.step
    try:
        tags = await one_step(parts, progress, stop)
        progress.skipped_in_a_row = 0
    except TooManyFailures:
        raise
    except (TimeoutError, TrainingError) as e:
        progress.skipped_in_a_row += 1
        reason = str(e) or f"the rollout took longer than run.step_timeout_s={parts.run.step_timeout_s}"
        parts.screen.line(f"step {step} skipped: {reason}")
        if progress.skipped_in_a_row >= parts.run.max_consecutive_skipped_steps:
            skipped = progress.skipped_in_a_row
            raise TrainingError(f"{skipped} steps in a row were skipped; the last one, {step}: {reason}") from e
        tags = {"skipped": 1.0}
    with parts.clock.stage(Stage.SYNC):
        await parts.engine.load_weights(step + 1)
        tags |= await refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, step)
    tags |= progress.dev if progress.dev_step == step else {}
    with parts.clock.stage(Stage.RECORDS):
        parts.metrics.step(step, tags)
        progress.step, progress.last_tags, progress.weights_ahead = step + 1, tags, False
        parts.trackers.log(tags, step=step)
        for alarm in parts.alarms.look(step, tags):
            parts.screen.line(alarm)
    profile = note_profile(parts, step)
    with parts.clock.stage(Stage.RECORDS):
        parts.screen.metrics(step, tags | profile)
        parts.screen.advance()


async def between_steps(parts: Parts, progress: Progress, stop: StopRequest) -> None:
    """The dev evaluation and the checkpoint that are due before step `progress.step`."""
    run, step = parts.run, progress.step
    stop.refuse_to_go_on()
    if run.eval_every and step and step % run.eval_every == 0 and progress.dev_step != step:
        with parts.clock.stage(Stage.EVALUATION):
            progress.dev = await stop.unless_stopped(parts.dev_score(step))
        progress.dev_step, progress.saved_step = step, None
    due = step % run.checkpoint_every == 0 or progress.dev_step == step if run.checkpoint_every else False
    if due and progress.saved_step != step:
        with parts.clock.stage(Stage.CHECKPOINT):
            save(parts, progress)


async def train(parts: Parts, progress: Progress, stop: StopRequest) -> None:
    """From `progress` to run.max_steps. Raises Preempted after a signal, TrainingError when a guard says so; either
    way a checkpoint of the last whole step is left behind."""
    run = parts.run
    parts.screen.stage("training", run.max_steps)
    parts.screen.advance(progress.step)
    parts.clock.lap()  # what came before belongs to no step
    try:
        await between_steps(parts, progress, stop)
        while progress.step < run.max_steps:
            await advance(parts, progress, stop)
            await between_steps(parts, progress, stop)
    finally:
        if run.checkpoint_every and progress.saved_step != progress.step and not progress.weights_ahead:
            save(parts, progress)


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
