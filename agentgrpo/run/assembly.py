"""The assembly: a wiring to the session that trains what it has built.

Wiring --> optimizer, reference, trainer, checkpoint store, records --> Parts --> Session
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
from agentgrpo.config.admission import needed_overrides
from agentgrpo.config.build import build_node, user_code
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.stages import NoClock
from agentgrpo.models.loading import open_policy, open_reference
from agentgrpo.records.card import model_card
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.trackers import Trackers
from agentgrpo.run.checkpoints import restore
from agentgrpo.run.diagnostics import Watch
from agentgrpo.run.parts import RNG, Parts, of_optimizer
from agentgrpo.run.report import show_episode
from agentgrpo.run.session import TrainingSession
from agentgrpo.run.wiring import Wiring
from agentgrpo.tasks.base import MixedDataset
from agentgrpo.tasks.order import TaskOrder, curriculum_of
from agentgrpo.training.canary import is_pooled
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.process_group import once, only_first, refuse_unequal
from agentgrpo.training.reference import Reference, reference_state
from agentgrpo.training.sharding import shard
from agentgrpo.training.trainer import Trainer


def session_of(wiring: Wiring, checkpoint: LoadedCheckpoint | None, watch: Watch) -> TrainingSession:
    """The whole run; with a checkpoint, its optimizer and generator states restored. Raises ConfigError where sampled
    and recomputed log-probs could not agree."""
    refuse_untrainable(wiring)
    refuse_few(wiring)
    reference = open_reference(wiring.policy, wiring.algorithm, checkpoint, wiring.hardware, code=wiring.code)
    if wiring.is_sharded:
        shard(wiring.policy.model, wiring.world.size)
    optimizer: AdamW = build_node("optimizer", wiring.config["optimizer"], model=wiring.policy.model)
    trainer = _trainer(wiring, reference, optimizer)
    if checkpoint is not None:
        wiring.guards.load_state(checkpoint.state["guards"])
        torch.set_rng_state(checkpoint.tensors[RNG])
        optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
    start = checkpoint.state["start"] if checkpoint else wiring.start.state()
    fixed = wiring.fixed_state(start)
    refuse_unequal(wiring.world, "start weights, data or tools", (start["sha256"], fixed["fingerprints"]))
    run = _without_void_evaluations(wiring)
    reopened = partial(open_policy, hardware=wiring.hardware, code=wiring.code)
    examiner = wiring.examiner(test=run.final_eval, dev=bool(run.eval_every))
    parts = Parts(
        order=task_order(wiring),
        runner=wiring.runner,
        engine=wiring.engine,
        reward=wiring.reward,
        trainer=trainer,
        run=run,
        rollout=wiring.rollout,
        sampling=wiring.sampling,
        store=_store(wiring, reference, optimizer),
        metrics=only_first(wiring.world, lambda: MetricsLog(Path(wiring.run.dir))),
        trackers=_trackers(wiring, start_step=checkpoint.step if checkpoint else 0),
        screen=wiring.screen,
        guards=wiring.guards,
        restore=lambda saved: restore(trainer, reference, reopened(saved.path), saved),
        reference=reference,
        canary_ids=wiring.canary_ids,
        dev_score=examiner.dev_score,
        show=partial(show_episode, wiring.screen),
        card=partial(_card, wiring),
        fixed_state=fixed,
        meter=wiring.meter,
        clock=wiring.clock,
        watch=watch,
        world=wiring.world,
    )
    go_on = ["agentgrpo resume", f"'{wiring.run.dir}'", *needed_overrides(wiring.snapshot, user_code(wiring.snapshot))]
    return TrainingSession(parts=parts, examiner=examiner, eval_key=_eval_key(wiring, start), go_on=" ".join(go_on))


def _without_void_evaluations(wiring: Wiring) -> RunSettings:
    """The run's settings, without dev evaluations where there would be one task to compare by."""
    run = wiring.run
    if not run.eval_every or len(wiring.dataset.split("dev")) != 1:
        return run
    wiring.screen.line("note: the dev split has 1 task, and an evaluation needs 2: no dev evaluations are made")
    return replace(run, eval_every=0)


def refuse_few(wiring: Wiring) -> None:
    """Raise DataError where the task set is too small for what the run does, with everything that it lacks."""
    run, per_step = wiring.run, wiring.rollout.tasks_per_step
    train, dev, test = (len(wiring.dataset.split(name)) for name in ("train", "dev", "test"))
    lacks = []
    if not train:
        lacks.append("no tasks to train on")
    elif per_step > train:
        lacks.append(f"{train} training tasks, fewer than rollout.tasks_per_step={per_step}")
    if run.final_eval and not test:
        lacks.append("an empty split 'test' (run.final_eval=false does without)")
    if run.eval_every and not dev:
        lacks.append("an empty split 'dev' (run.eval_every=0 does without)")
    if lacks:
        raise DataError(
            f"task={wiring.config['task']['name']} is too small for this run: it has {'; '.join(lacks)}. Give it more, "
            "or change that"
        )


def refuse_untrainable(wiring: Wiring) -> None:
    rollout = wiring.rollout
    if not wiring.engine.trainable:
        raise ConfigError(f"engine={wiring.config['engine']['name']} gives no exact log-probs: evaluate with it")
    if (rollout.top_p, rollout.top_k, rollout.min_p) != (1.0, 0, 0.0):
        raise ConfigError(
            f"rollout.top_p={rollout.top_p}, top_k={rollout.top_k}, min_p={rollout.min_p}: training "
            "scores the whole distribution, so only 1.0, 0 and 0.0 are allowed; shape it with rollout.temperature"
        )


def _trainer(wiring: Wiring, reference: Reference | None, optimizer: AdamW) -> Trainer:
    algorithm, hardware = wiring.algorithm, wiring.hardware
    return Trainer(
        policy=wiring.policy,
        reference=None if reference is None else reference.policy,
        optimizer=optimizer,
        algorithm=algorithm,
        total_steps=wiring.run.max_steps,
        temperature=wiring.rollout.temperature,
        tokens_per_micro_batch=hardware.tokens_per_micro_batch,
        head_chunk_tokens=hardware.head_chunk_tokens,
        mixed_precision=hardware.mixed_precision,
        activation_checkpointing=hardware.activation_checkpointing,
        clock=NoClock() if algorithm.max_staleness else wiring.clock,  # a clock is for one thread
        world=wiring.world,
        sampler_differs=algorithm.has_old_samples or hardware.mixed_precision != "no" or is_pooled(wiring.engine),
    )


def task_order(wiring: Wiring) -> TaskOrder:
    return TaskOrder(
        wiring.dataset.split("train"),
        tasks_per_step=wiring.rollout.tasks_per_step,
        seed=wiring.run.seed,
        stratify_by=wiring.rollout.stratify_by,
        curriculum=curriculum_of(wiring.rollout),
        mixture=wiring.dataset.mixture if isinstance(wiring.dataset, MixedDataset) else None,
    )


def _store(wiring: Wiring, reference: Reference | None, optimizer: AdamW) -> CheckpointStore:
    """Where the run's checkpoints go; the disk must hold one."""
    run = wiring.run
    store = CheckpointStore(run_dir=Path(run.dir), keep_last=run.keep_last, keep_best=run.keep_best)
    if run.checkpoint_every:
        held = [*wiring.policy.saved, *optimizer.state_tensors().values(), *reference_state(reference).values()]
        if wiring.algorithm.max_staleness:  # the sampler's
            held += [p for p in wiring.policy.model.parameters() if p.requires_grad]
        once(wiring.world, lambda: store.preflight(sum(x.numel() * x.element_size() for x in held)))
    return store


def _trackers(wiring: Wiring, *, start_step: int) -> Trackers:
    run, config = wiring.run, dict(wiring.snapshot)
    make = partial(Trackers, log_with=run.log_with, run_dir=Path(run.dir), config=config, start_step=start_step)
    return only_first(wiring.world, make)


def _card(wiring: Wiring, step: int, tags: Mapping[str, float]) -> str:
    return model_card(
        task=str(wiring.config["task"]["name"]),
        base=str(wiring.config["model"].get("path") or wiring.config["model"]["name"]),
        step=step,
        metrics=tags,
        config=wiring.snapshot,
        version=__version__,
    )


def _eval_key(wiring: Wiring, start: Mapping[str, Any]) -> str:
    """Of what an evaluation of the start weights depends on."""
    of = [start["sha256"], wiring.dataset.fingerprint, wiring.config["run"]["eval"], wiring.run.seed]
    return sha256(repr(of).encode()).hexdigest()
