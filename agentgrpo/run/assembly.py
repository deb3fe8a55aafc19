"""The assembly: from a built Run to the session that trains it.

Run --> optimizer, reference, trainer, checkpoint store, records --> Parts --> Session
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from agentgrpo import __version__
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.errors import CheckpointError, ConfigError, DataError
from agentgrpo.core.stages import NoClock
from agentgrpo.core.untrusted import damaged
from agentgrpo.models.loading import open_policy, open_reference
from agentgrpo.records.card import model_card
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.trackers import Trackers, require_boards
from agentgrpo.rollout.demonstrations.base import Demonstrations
from agentgrpo.run.build import Run
from agentgrpo.run.checkpoints import restore
from agentgrpo.run.diagnostics import Watch
from agentgrpo.run.first_look import too_long
from agentgrpo.run.parts import RNG, Parts, of_optimizer
from agentgrpo.run.report import show_episode
from agentgrpo.run.resume import way_on
from agentgrpo.run.session import TrainingSession
from agentgrpo.run.settings import Settings
from agentgrpo.tasks.base import MixedDataset
from agentgrpo.tasks.order import TaskOrder, curriculum_of
from agentgrpo.training.adapters import has_adapter
from agentgrpo.training.canary import is_pooled
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.learning_rate import too_low
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.process_group import once, only_first, refuse_unequal
from agentgrpo.training.reference import Reference, reference_state
from agentgrpo.training.sharding import shard
from agentgrpo.training.trainer import Trainer


def session_of(built: Run, checkpoint: LoadedCheckpoint | None, watch: Watch) -> TrainingSession:
    """Return the session of the whole run; with a checkpoint, its optimizer and generator states are restored. Raises
    ConfigError if sampled and recomputed log-probs could not agree."""
    refuse_untrainable(built)
    refuse_few(built)
    shown = built.source.by(built.runner, built.rollout) if built.source else None
    for note in shown.notes if shown else built.left_out:
        built.screen.line(f"note: {note}")
    reference = open_reference(built.policy, built.algorithm, checkpoint, built.hardware, code=built.code)
    if built.is_sharded:
        shard(built.policy.model, built.world.size)
    optimizer: AdamW = built.settings.optimizer.build(model=built.policy.model)
    if checkpoint is None:
        _say_unfit(built, optimizer)
    trainer = _trainer(built, reference, optimizer)
    if checkpoint is None:
        torch.manual_seed(built.run.seed)  # our code does not use torch's own generator, but a user's part may
    else:
        with damaged(checkpoint.path, CheckpointError):
            built.guards.load_state(checkpoint.state["guards"])
            torch.set_rng_state(checkpoint.tensors[RNG])
            optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
    start = checkpoint.state["start"] if checkpoint else built.start.state()
    fixed = built.fixed_state(start)
    refuse_unequal(built.world, "start weights, data or tools", (start["sha256"], fixed["fingerprints"]))
    run = _without_void_evaluations(built)
    reopened = partial(open_policy, hardware=built.hardware, code=built.code)
    examiner = built.examiner(test=run.final_eval, dev=bool(run.eval_every))
    parts = Parts(
        order=task_order(built, shown),
        runner=built.runner,
        engine=built.engine,
        reward=built.reward,
        trainer=trainer,
        run=run,
        rollout=built.rollout,
        group_sizes=built.group_sizes,
        sampling=built.sampling,
        store=_store(built, reference, optimizer),
        metrics=only_first(built.world, lambda: MetricsLog(Path(built.run.dir))),
        trackers=_trackers(built, start_step=checkpoint.step if checkpoint else 0),
        screen=built.screen,
        guards=built.guards,
        restore=lambda saved: restore(trainer, reference, reopened(saved.path), saved),
        reference=reference,
        canary_ids=built.canary_ids,
        dev_score=examiner.dev_score,
        show=partial(show_episode, built.screen),
        card=partial(_card, built),
        fixed_state=fixed,
        demonstrations=shown,
        meter=built.meter,
        clock=built.clock,
        watch=watch,
        world=built.world,
    )
    go_on = way_on(built.snapshot, built.run)
    return TrainingSession(parts=parts, examiner=examiner, eval_key=_eval_key(built, start), go_on=go_on)


def _without_void_evaluations(built: Run) -> RunSettings:
    """Return the run's settings, without dev evaluations if the dev split has only one task."""
    run = built.run
    if not run.eval_every or len(built.dataset.split("dev")) != 1:
        return run
    built.screen.line("note: the dev split has 1 task, and an evaluation needs 2: no dev evaluations are made")
    return replace(run, eval_every=0)


def refuse_few(built: Run) -> None:
    """Raise DataError if the task set is too small for this run; the message lists everything that is missing."""
    run, per_step = built.run, built.rollout.tasks_per_step
    train, dev, test = len(built.train_tasks), *(len(built.dataset.split(name)) for name in ("dev", "test"))
    lacks = []
    if not train:
        lacks.append("no tasks to train on")
    elif per_step > train and not built.source:
        lacks.append(f"{train} training tasks, fewer than rollout.tasks_per_step={per_step}")
    if run.final_eval and not test:
        lacks.append("an empty split 'test' (run.final_eval=false does without)")
    if run.eval_every and not dev:
        lacks.append("an empty split 'dev' (run.eval_every=0 does without)")
    if lacks:
        raise DataError(
            f"task={built.settings.task.name} is too small for this run: it has {'; '.join(lacks)}. Add tasks, or "
            "change these settings"
        )


_IMITATES: Mapping[str, object] = {
    "algorithm.loss": "reinforce",
    "algorithm.kl_in": "loss",
    "algorithm.replay_groups": 0,
    "algorithm.max_staleness": 0,
    "rollout.refill_rounds": 0,
    "rollout.curriculum": "none",
}
"""Settings required with demonstrations, which have neither reward nor sampler."""


def refuse_unfit(settings: Settings) -> None:
    """Raise ConfigError, before start weights are made, for demonstrations with an algorithm for sampled episodes or
    the reverse, for parts that are allowed in evaluation only, and for unavailable experiment trackers."""
    require_boards(settings.run.log_with)
    refuse_gold_evidence(settings)
    name = settings.demonstrations.name
    if name == "none" and settings.tree["algorithm"]["name"] == "sft":
        raise ConfigError("algorithm=sft imitates demonstrations, and demonstrations=none; choose them: agentgrpo sft")
    if name == "none":
        return
    for key, needed in _IMITATES.items():
        group, _, field = key.partition(".")
        if (given := getattr(getattr(settings, group), field)) != needed:
            raise ConfigError(
                f"{key}={given} with demonstrations={name}: demonstrations have neither reward nor sampler, so "
                f"{key}={needed} is needed. Use agentgrpo sft instead of train: it has these settings"
            )


def refuse_gold_evidence(settings: Settings) -> None:
    """Raise ConfigError if the policy would learn from gold passages, which are known only in a test."""
    if any((of.environment.tree.get("evidence") or {}).get("name") == "gold" for of in settings.each):
        raise ConfigError(
            "environment.evidence.name=gold knows the passages that prove the answer, so it is for evaluation alone; "
            "train with evidence=lexical"
        )


def refuse_untrainable(built: Run) -> None:
    rollout = built.rollout
    refuse_gold_evidence(built.settings)
    if not built.engine.trainable:
        raise ConfigError(f"engine={built.settings.engine.name} gives no exact log-probs: evaluate with it")
    if (rollout.top_p, rollout.top_k, rollout.min_p) != (1.0, 0, 0.0):
        raise ConfigError(
            f"rollout.top_p={rollout.top_p}, top_k={rollout.top_k}, min_p={rollout.min_p}: training "
            "scores the whole distribution, so only 1.0, 0 and 0.0 are allowed; shape it with rollout.temperature"
        )


def _say_unfit(built: Run, optimizer: AdamW) -> None:
    """Print the learning rate if it was chosen by default or is too low, and warn of steps that take hours."""
    node, model = built.settings.optimizer.tree, built.policy.model
    weights = sum(p.numel() for p in model.parameters())
    if node.get("lr") is None and node.get("name") == "adamw":
        built.screen.line(f"note: the learning rate is {optimizer.lr:g}, the usual one for {weights:,} weights")
    if built.source is None and (low := too_low(node, weights, built.run.max_steps, is_adapter=has_adapter(model))):
        built.screen.line(f"note: {low}")
    if built.source is None and (long := too_long(built.settings.tree, weights)):
        built.screen.line(f"note: {long}")


def _trainer(built: Run, reference: Reference | None, optimizer: AdamW) -> Trainer:
    algorithm, hardware = built.algorithm, built.hardware
    return Trainer(
        policy=built.policy,
        reference=None if reference is None else reference.policy,
        optimizer=optimizer,
        algorithm=algorithm,
        total_steps=built.run.max_steps,
        temperature=1.0 if built.source else built.rollout.temperature,
        tokens_per_micro_batch=hardware.tokens_per_micro_batch,
        head_chunk_tokens=hardware.head_chunk_tokens,
        mixed_precision=hardware.mixed_precision,
        activation_checkpointing=hardware.activation_checkpointing,
        clock=NoClock() if algorithm.max_staleness else built.clock,  # a clock serves one thread only
        world=built.world,
        sampler_differs=built.source is None
        and (algorithm.has_old_samples or hardware.rounds or is_pooled(built.engine)),
    )


def task_order(built: Run, shown: Demonstrations | None = None) -> TaskOrder:
    return TaskOrder(
        shown.tasks if shown else built.train_tasks,
        tasks_per_step=built.rollout.tasks_per_step,
        seed=built.run.seed,
        stratify_by=built.rollout.stratify_by,
        curriculum=curriculum_of(built.rollout),
        mixture=built.dataset.mixture if isinstance(built.dataset, MixedDataset) and not shown else None,
    )


def _store(built: Run, reference: Reference | None, optimizer: AdamW) -> CheckpointStore:
    """Return the run's checkpoint store, after checking that the disk has room for a checkpoint."""
    run = built.run
    store = CheckpointStore(run_dir=Path(run.dir), keep_last=run.keep_last, keep_best=run.keep_best)
    if run.checkpoint_every:
        held = [*built.policy.saved, *optimizer.state_tensors().values(), *reference_state(reference).values()]
        if built.algorithm.max_staleness:  # the sampler's weights
            held += [p for p in built.policy.model.parameters() if p.requires_grad]
        once(built.world, lambda: store.preflight(sum(x.numel() * x.element_size() for x in held)))
    return store


def _trackers(built: Run, *, start_step: int) -> Trackers:
    run, config = built.run, dict(built.snapshot)
    make = partial(Trackers, log_with=run.log_with, run_dir=Path(run.dir), config=config, start_step=start_step)
    return only_first(built.world, make)


def _card(built: Run, step: int, tags: Mapping[str, float]) -> str:
    model = built.settings.tree["model"]
    return model_card(
        task=built.settings.task.name,
        base=str(model.get("path") or model["name"]),
        step=step,
        metrics=tags,
        config=built.snapshot,
        version=__version__,
    )


def _eval_key(built: Run, start: Mapping[str, Any]) -> str:
    """Return a hash of everything that the evaluation of the start weights depends on."""
    evaluated = {key: value for key, value in built.settings.tree["run"]["eval"].items() if key != "baselines"}
    of = [start["sha256"], built.dataset.fingerprint, evaluated, built.run.seed]
    of += [member.run.eval.prices for member in built.members.values()]
    return sha256(repr(of).encode()).hexdigest()
