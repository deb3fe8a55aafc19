"""The training run: one loop over durable steps.

    TaskOrder --take--> [Task] --run_groups--> [EpisodeGroup] --score_groups--> [ScoredGroup]         roll_out
        --keep--> --advantages--> --record--> trajectories --samples--> [TrainingSample]              samples_of
        --pack--> [PackedBatch] --update--> new weights                                               train_step
        --sync--> engine --canary--> --record--> metrics                                              finish_step
        --evaluation, checkpoint-->                                                                   between_steps

A step is a pure function of its number and the weights before it: an interrupted step is simply repeated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from agentgrpo.core import heap
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
from agentgrpo.core.types import ScoredGroup, Task, TrainingSample
from agentgrpo.grpo.samples import group_advantages, is_zero_variance, to_samples
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import keep_trainable, new_failures, refuse_failures, score_groups
from agentgrpo.run.checkpoints import is_due, judge_checkpoints, roll_back, save
from agentgrpo.run.context import RunContext
from agentgrpo.run.cpu_seconds import CPU, cpu_seconds, is_trained, trained_cpu_s
from agentgrpo.run.learning import less_truncated, less_zero_variance, spread, what_stays, with_kl_penalty
from agentgrpo.run.parts import Parts, Progress, StepState, to_replay, with_weights
from agentgrpo.run.recording import note_seconds, record_groups, record_seconds, record_step
from agentgrpo.run.rollouts import Rollout, Rollouts, bill_since, counted, taking
from agentgrpo.services.asking import asking_step
from agentgrpo.tasks.order import Rates
from agentgrpo.tasks.suite import member_of
from agentgrpo.training.canary import is_pooled, refuse_stale_weights
from agentgrpo.training.process_group import once, share

SYNC_SHARE = 0.5
"""Share of run.grace_s in which servers may take new weights after a stop request; the rest is for the checkpoint."""


async def roll_out(parts: Parts, step: int, rates: Rates | None = None) -> Rollout:
    """Turn the step's tasks into scored groups, the same in all processes. If cancelled, it stops everything started.

    Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): a zero-variance or failed group is replaced by a rollout of
    another task, in at most rollout.refill_rounds further rounds. rates: solve rates for a curriculum."""
    settings, seconds = parts.rollout, Counter[str]()

    async def run_and_score(own: Sequence[Task]) -> list[ScoredGroup]:
        with taking(seconds, "time/generation"):
            groups = await run_groups(
                parts.runner,
                own,
                group_size=lambda task: parts.group_sizes.get(member_of(task), settings.group_size),
                stream=f"train/{step}",
                sampling=parts.sampling,
                max_concurrent_episodes=settings.max_concurrent_episodes,
                episode_timeout_s=settings.episode_timeout_s,
                episode_retries=settings.episode_retries,
            )
        with taking(seconds, "time/reward"), parts.clock.call(Stage.REWARD):
            return await score_groups(parts.reward, groups)

    scored: list[ScoredGroup] = []
    tasks, rounds = parts.order.take(step, rates), 0
    while tasks:
        with asking_step(step):
            before = counted(parts)
            found = await share(parts.world, tasks, run_and_score)
            seconds.update(await bill_since(parts, before))
        scored, rounds = [*scored, *found], rounds + 1
        if rounds > settings.refill_rounds:
            break
        _, dropped = keep_trainable(
            found, is_zero_variance=partial(is_zero_variance, algorithm=parts.trainer.algorithm)
        )
        lacking = [group.group.task for group, reason in zip(found, dropped, strict=True) if reason is not None]
        tasks = parts.order.replace(lacking, step=step, round_number=rounds, taken=_ids(scored), rates=rates)
    tags = {"rollout/rounds": float(rounds), "groups/refilled": float(len(scored) - settings.tasks_per_step)}
    return Rollout(scored=scored, tags=tags if settings.refill_rounds else {}, seconds=seconds)


async def demonstrate(parts: Parts, step: int, rates: Rates | None = None) -> Rollout:
    """Replacement for `roll_out`: returns the step's demonstrations, which are neither sampled nor scored."""
    assert parts.demonstrations is not None
    with asking_step(step):
        before = counted(parts)
        groups = await share(parts.world, parts.order.take(step, rates), parts.demonstrations.show)
        seconds = await bill_since(parts, before)
    scored = [ScoredGroup(group=group, rewards=(None,) * len(group.episodes)) for group in groups]
    return Rollout(scored=scored, tags={}, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class StepSamples:
    """The samples that a step trains on."""

    samples: Sequence[TrainingSample]
    tags: Mapping[str, float]
    state: StepState
    """State that the next step begins with."""


def samples_of(parts: Parts, step: int, rollout: Rollout, state: StepState) -> StepSamples:
    """Choose and credit the groups to train on: the step's own, zero-variance groups with advantage 0, and with
    algorithm.replay_groups earlier groups in place of the dropped ones. Every group of the step is recorded, chosen or
    not. Raises TooManyFailures."""
    algorithm = parts.trainer.algorithm
    scored, kl_tags = with_kl_penalty(rollout.scored, parts.trainer)
    _, reasons = keep_trainable(
        scored,
        oldest_version=step - algorithm.max_staleness,
        is_zero_variance=partial(is_zero_variance, algorithm=algorithm),
    )
    dropped = less_zero_variance(reasons, algorithm, parts.rollout)
    kept = [group for group, reason in zip(scored, dropped, strict=True) if reason is None]
    replayed = to_replay(state.replay, parts.rollout.tasks_per_step - len(kept), taken=_ids(kept))
    advantages = group_advantages([*scored, *replayed], algorithm)
    tags = {**record_groups(parts, step, rollout, advantages[: len(scored)], reasons, dropped), **kl_tags}
    refuse_failures(rollout.scored, max_error_fraction=parts.run.max_error_fraction)
    groups = [*kept, *replayed]
    used = [credits for credits, reason in zip_longest(advantages, dropped) if reason is None]
    if algorithm.mask_truncated:
        used = less_truncated(groups, used)
    tags["advantages/std"] = spread(used)
    if algorithm.replay_groups:
        tags["groups/replayed"] = float(len(replayed))
    state = what_stays(state, rollout.scored, kept, parts.order.curriculum, algorithm.replay_groups)
    return StepSamples(samples=to_samples(groups, used), tags=tags, state=state)


async def train_step(parts: Parts, progress: Progress, ctx: RunContext, rollouts: Rollouts) -> dict[str, float]:
    """Run one step and return its tags; the weights are updated only at its end. A stop request abandons the rollout
    (Preempted). A rollout longer than run.step_timeout_s raises TimeoutError."""
    step = progress.step
    progress.next_state = replace(progress.state, sampler=None)
    guard = partial(parts.guards.look, step)
    guard(progress.dev_tags)
    rollout = await ctx.do(f"the rollout of step {step}", rollouts.of(step, progress.state.rates))
    began = time.monotonic()
    heap.give_back()  # frees the rollout's memory: the update's tensors have other sizes
    ctx.at(f"the update of step {step}")
    chosen = samples_of(parts, step, rollout, progress.next_state)
    for line in new_failures(rollout.scored, progress.told):
        parts.screen.line(f"note: step {step}: {line}")
    guard(chosen.tags)
    progress.next_state = rollouts.begin_early(step + 1, chosen.state)
    progress.is_unrecorded = True
    # pack -> forward and backward, micro-batch by micro-batch -> optimizer
    update = await rollouts.beside(partial(parts.trainer.update, chosen.samples, step=step, guard=guard))
    heap.give_back()
    if parts.reference is not None:
        parts.reference.after_update(step)
    tags = {**chosen.tags, **update.tags()}
    record_seconds(parts, step, rollout, tags, update_s=time.monotonic() - began)
    return tags


async def sync(parts: Parts, ctx: RunContext, version: int) -> dict[str, float]:
    """Load the policy's weights, after `version` updates, into the engine, and return the canary's tags."""
    phase = f"the weight sync of step {version - 1}"
    # Servers may take long; the work of this process alone takes no longer than any computation.
    part = SYNC_SHARE if is_pooled(parts.engine) else 1.0
    await ctx.do(phase, parts.engine.load_weights(version), share=part)
    canary = refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, version - 1)
    return await ctx.do(phase, canary, share=part)


async def finish_step(
    parts: Parts, progress: Progress, ctx: RunContext, rollouts: Rollouts, tags: dict[str, float], *, began_cpu_s: float
) -> None:
    """Finish a step, skipped or not: send its weights to the engine and record its tags. Between update and record the
    weights are ahead of the files, so no checkpoint may be saved; a failure there (a stale engine, a full disk) ends
    the run at the last checkpoint. If the only failure is that no server takes the new weights, or none in time after a
    stop request, the step is complete and the run ends after it."""
    step = progress.step
    await rollouts.settle()
    lost: NoServer | Preempted | None = None
    with parts.clock.stage(Stage.SYNC):
        try:
            tags |= await sync(parts, ctx, step + 1)
        except (NoServer, Preempted) as e:  # a resumed run checks the weights again before the next step
            lost = e
    tags |= progress.dev_tags
    guarded = parts.guards.close(step, tags)
    judge_checkpoints(parts, progress, step, tags)
    tags |= guarded.tags
    step_cpu_s = cpu_seconds() - began_cpu_s
    note_seconds(parts, step, {CPU: step_cpu_s})
    progress.cpu_s += step_cpu_s
    record_step(parts, progress, tags, guarded.lines)
    if error := guarded.halt or lost:
        raise error


async def between_steps(parts: Parts, progress: Progress, ctx: RunContext) -> None:
    """Run the dev evaluation and save the checkpoint that are due before step `progress.step`."""
    run, step = parts.run, progress.step
    ctx.stop_if_asked(f"the start of step {step}")
    if run.eval_every and step and step % run.eval_every == 0 and progress.dev_step != step:
        with parts.clock.stage(Stage.EVALUATION):
            progress.dev = await ctx.do(f"the evaluation before step {step}", parts.dev_score(step))
        progress.dev_step, progress.saved_step = step, None
    if is_due(parts, progress) and progress.saved_step != step:
        with parts.clock.stage(Stage.CHECKPOINT):
            save(parts, progress, ctx)


async def train(parts: Parts, progress: Progress, ctx: RunContext) -> None:
    """Train from `progress` to run.max_steps or run.max_cpu_s. Raises Preempted after a signal, TrainingError if a
    guard demands it; either way a checkpoint of the last whole step is saved."""
    if not _is_over(parts, progress):
        parts.screen.stage("training", parts.run.max_steps if parts.run.max_cpu_s is None else None)
        parts.screen.advance(progress.step)
    progress.cpu_s = once(parts.world, lambda: trained_cpu_s(Path(parts.run.dir)))
    parts.clock.lap()  # earlier time belongs to no step
    rollouts = Rollouts(parts, ctx, partial(demonstrate if parts.demonstrations else roll_out, parts))
    try:
        await begin_again(parts, progress, ctx, rollouts)
        await between_steps(parts, progress, ctx)
        while not _is_over(parts, progress):
            began_cpu_s = cpu_seconds()
            with parts.watch.step(f"step {progress.step}"):
                try:
                    tags = await train_step(parts, progress, ctx, rollouts)
                    progress.skipped_in_a_row = 0
                except (TimeoutError, TrainingError) as e:
                    tags = await give_up(parts, progress, rollouts, e)
                await finish_step(parts, progress, ctx, rollouts, tags, began_cpu_s=began_cpu_s)
            with parts.watch.step(f"what follows step {progress.step - 1}"):
                await between_steps(parts, progress, ctx)
    except BaseException:
        with suppress(ProcessError):  # the other processes may not end with the same error
            await leave(parts, progress, ctx, rollouts)
        raise
    await leave(parts, progress, ctx, rollouts)


# --- Exceptions to the rule: a skipped step, a resumed run, the end of a run.


async def give_up(parts: Parts, progress: Progress, rollouts: Rollouts, error: Exception) -> dict[str, float]:
    """Return the tags of a step that `error` has ended: it is skipped, or a guard rolls back to an earlier checkpoint.
    Raises errors that end the run."""
    if isinstance(error, TrainingError):
        progress.is_unrecorded = False  # a refused update has changed nothing
    if isinstance(error, TooManyFailures | GuardHalt):
        raise error
    if isinstance(error, GuardRollback):
        await rollouts.abandon()  # it samples from the discarded weights, and so did the replayed groups
        progress.next_state = replace(progress.next_state, sampler=None, replay=())
        return parts.guards.seen | roll_back(parts, progress, error)
    progress.skipped_in_a_row += 1
    reason = str(error) or f"the rollout took longer than run.step_timeout_s={parts.run.step_timeout_s}"
    parts.screen.line(f"step {progress.step} skipped: {reason}")
    if progress.skipped_in_a_row >= parts.run.max_consecutive_skipped_steps:
        skipped = progress.skipped_in_a_row
        raise TrainingError(
            f"{skipped} steps in a row were skipped; the last one, {progress.step}: {reason}"
        ) from error
    return parts.guards.seen | {"skipped": 1.0}


async def begin_again(parts: Parts, progress: Progress, ctx: RunContext, rollouts: Rollouts) -> None:
    """In a resumed run: repeat a rollout that had been begun early, with the weights that it sampled from."""
    step, sampler = progress.step, progress.state.sampler
    if sampler is None or _is_over(parts, progress):
        return
    with with_weights(parts.trainer.policy, sampler):
        await sync(parts, ctx, step - 1)
    rollouts.begin(step, progress.state.rates)
    await rollouts.settle()
    ctx.stop_if_asked(f"the start of step {step}")
    await sync(parts, ctx, step)


async def leave(parts: Parts, progress: Progress, ctx: RunContext, rollouts: Rollouts) -> None:
    """Stop all rollouts, and save a checkpoint of the last whole step."""
    await rollouts.close()
    if parts.run.checkpoint_every and progress.saved_step != progress.step and not progress.is_unrecorded:
        save(parts, progress, ctx)


def _is_over(parts: Parts, progress: Progress) -> bool:
    """Return whether training is over; with several processes, the first one's clock decides."""
    if parts.run.max_cpu_s is None:
        return progress.step >= parts.run.max_steps
    return once(parts.world, lambda: is_trained(parts.run, progress.step, progress.cpu_s))


def _ids(groups: Sequence[ScoredGroup]) -> set[str]:
    """Return the ids of the groups' tasks."""
    return {group.group.task.id for group in groups}
