"""The training run: the one flow, step by step, durable.

    TaskDataset -> [Task] -> [EpisodeGroup] -> [ScoredGroup] -> record -> keep informative -> advantages
                -> [TrainingSample] -> update -> new weights -> engine -> canary -> metrics -> checkpoint

A step is a pure function of the weights before it and of its number: one that was interrupted is simply done again.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agentgrpo.core.errors import (
    GuardHalt,
    GuardRollback,
    NoServer,
    Preempted,
    ProcessError,
    TooManyFailures,
    TrainingError,
)
from agentgrpo.core.stages import Stage
from agentgrpo.run.learning import study
from agentgrpo.run.parts import Parts, Progress
from agentgrpo.run.rollback import judge_checkpoints, roll_back
from agentgrpo.run.rollouts import Rollouts
from agentgrpo.run.saving import is_due, note_profile, note_seconds, save, step_seconds
from agentgrpo.run.signals import StopRequest
from agentgrpo.training.canary import is_pooled, refuse_stale_weights
from agentgrpo.training.process_group import agree, agree_on

T = TypeVar("T")
SYNC_SHARE = 0.5
"""Of run.grace_s, for servers to take new weights after a stop request; the rest is for the checkpoint."""


async def one_step(parts: Parts, progress: Progress, rollouts: Rollouts, stop: StopRequest) -> dict[str, float]:
    """One step's tags; afterwards the weights are updated, and only then. A stop request abandons the rollout
    (Preempted); past run.step_timeout_s it is a TimeoutError."""
    step = progress.step
    progress.coming = replace(progress.carried, sampler=None)
    parts.guards.look(step, progress.dev if progress.dev_step == step else {})
    parts.world.phase = f"the rollout of step {step}"
    rolled = await agree_on(parts.world, stop.unless_stopped(rollouts.of(step, progress.carried.rates)))
    began = time.monotonic()
    parts.world.phase = f"the update of step {step}"
    lesson = study(parts, step, rolled, progress.coming)
    parts.guards.look(step, lesson.tags)
    progress.coming = rollouts.begin_next(step, lesson.carried)
    progress.weights_ahead = True
    guard = partial(parts.guards.look, step)
    try:
        update = await rollouts.beside(partial(parts.trainer.update, lesson.samples, step=step, guard=guard))
    except TrainingError:  # a refused update has changed nothing
        progress.weights_ahead = False
        raise
    if parts.reference is not None:
        parts.reference.after_update(step)
    tags = {**lesson.tags, **update.tags()}
    with parts.clock.stage(Stage.RECORDS):
        seconds = step_seconds(rolled, tags, update_s=time.monotonic() - began)
        note_seconds(parts, step, {**seconds, **parts.watch.lap()})
        parts.show(rolled.scored)
    return tags


async def advance(parts: Parts, progress: Progress, rollouts: Rollouts, stop: StopRequest) -> None:
    """One step more, skipped or not. Between its update and its record the weights are ahead of the files, and no
    checkpoint may be taken: what fails there (a stale engine, a full disk) ends the run at the last checkpoint. Where
    only nobody is left to take the new weights, or nobody takes them soon after a stop request, the step is whole, and
    the run ends behind it."""
    step = progress.step
    try:
        tags = await one_step(parts, progress, rollouts, stop)
        progress.skipped_in_a_row = 0
    except (TooManyFailures, GuardHalt):
        raise
    except GuardRollback as e:
        await rollouts.abandon()  # what was begun samples from the weights that are given up, as what is kept did
        progress.coming = replace(progress.coming, sampler=None, replay=())
        tags = parts.guards.seen | roll_back(parts, progress, e)
    except (TimeoutError, TrainingError) as e:
        progress.skipped_in_a_row += 1
        reason = str(e) or f"the rollout took longer than run.step_timeout_s={parts.run.step_timeout_s}"
        parts.screen.line(f"step {step} skipped: {reason}")
        if progress.skipped_in_a_row >= parts.run.max_consecutive_skipped_steps:
            skipped = progress.skipped_in_a_row
            raise TrainingError(f"{skipped} steps in a row were skipped; the last one, {step}: {reason}") from e
        tags = parts.guards.seen | {"skipped": 1.0}
    await rollouts.settle(stop)
    parts.world.phase = f"the weight sync of step {step}"
    lost: NoServer | Preempted | None = None
    with parts.clock.stage(Stage.SYNC):
        try:
            await agree_on(parts.world, _by_servers(parts, stop, parts.engine.load_weights(step + 1)))
            canary = refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, step)
            tags |= await agree_on(parts.world, _by_servers(parts, stop, canary))
        except (NoServer, Preempted) as e:  # whoever goes on checks the weights again, before the next step
            lost = e
    tags |= progress.dev if progress.dev_step == step else {}
    guarded = parts.guards.close(step, tags)
    judge_checkpoints(parts, progress, step, tags)
    tags |= guarded.tags
    with parts.clock.stage(Stage.RECORDS):
        parts.metrics.step(step, tags)
        progress.step, progress.last_tags, progress.weights_ahead = step + 1, tags, False
        progress.carried = progress.coming
        parts.trackers.log(tags, step=step)
        for line in guarded.lines:
            parts.screen.line(line)
    profile = note_profile(parts, step)
    with parts.clock.stage(Stage.RECORDS):
        parts.screen.metrics(step, tags | profile)
        parts.screen.advance()
    if error := guarded.halt or lost:
        raise error


def _by_servers(parts: Parts, stop: StopRequest, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Servers may be long in coming; what this process does by itself is no longer than any computation."""
    return stop.unless_stopped(work, share=SYNC_SHARE) if is_pooled(parts.engine) else work


async def between_steps(parts: Parts, progress: Progress, stop: StopRequest) -> None:
    """The dev evaluation and the checkpoint that are due before step `progress.step`."""
    run, step = parts.run, progress.step
    parts.world.phase = f"the start of step {step}"
    agree(parts.world, stop.refuse_to_go_on)
    if run.eval_every and step and step % run.eval_every == 0 and progress.dev_step != step:
        parts.world.phase = f"the evaluation before step {step}"
        with parts.clock.stage(Stage.EVALUATION):
            progress.dev = await agree_on(parts.world, stop.unless_stopped(parts.dev_score(step)))
        progress.dev_step, progress.saved_step = step, None
    if is_due(parts, progress) and progress.saved_step != step:
        with parts.clock.stage(Stage.CHECKPOINT):
            save(parts, progress)


async def train(parts: Parts, progress: Progress, stop: StopRequest) -> None:
    """From `progress` to run.max_steps. Raises Preempted after a signal, TrainingError when a guard says so; either
    way a checkpoint of the last whole step is left behind."""
    run = parts.run
    parts.screen.stage("training", run.max_steps)
    parts.screen.advance(progress.step)
    parts.clock.lap()  # what came before belongs to no step
    rollouts = Rollouts(parts)
    try:
        await rollouts.catch_up(progress, stop)
        await between_steps(parts, progress, stop)
        while progress.step < run.max_steps:
            with parts.watch.step(f"step {progress.step}"):
                await advance(parts, progress, rollouts, stop)
            with parts.watch.step(f"what follows step {progress.step - 1}"):
                await between_steps(parts, progress, stop)
    except BaseException:
        with suppress(ProcessError):  # what ends the run here may not end it in the other processes
            await _leave(parts, progress, rollouts)
        raise
    await _leave(parts, progress, rollouts)


async def _leave(parts: Parts, progress: Progress, rollouts: Rollouts) -> None:
    await rollouts.close()
    if parts.run.checkpoint_every and progress.saved_step != progress.step and not progress.weights_ahead:
        save(parts, progress)
