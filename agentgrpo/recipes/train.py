"""The training run: the one flow, step by step, durable.

    TaskDataset -> [Task] -> [EpisodeGroup] -> [ScoredGroup] -> record -> keep informative -> advantages
                -> [TrainingSample] -> update -> new weights -> engine -> canary -> metrics -> checkpoint

A step is a pure function of the weights before it and of its number: one that was interrupted is simply done again.
"""

from __future__ import annotations

import asyncio
import time

from agentgrpo.errors import TooManyFailures, TrainingError
from agentgrpo.recipes.canary import refuse_stale_weights
from agentgrpo.recipes.learning import learn
from agentgrpo.recipes.parts import Parts, Progress
from agentgrpo.recipes.rolling import roll_out
from agentgrpo.recipes.saving import note_profile, note_seconds, save
from agentgrpo.recipes.signals import StopRequest
from agentgrpo.rollout import rollout_clocks
from agentgrpo.stages import Stage


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
