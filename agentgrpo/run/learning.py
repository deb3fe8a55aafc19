"""The second half of a step: scored groups to new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import torch

from agentgrpo.core.stages import Stage
from agentgrpo.core.types import ScoredGroup, TrainingSample
from agentgrpo.grpo.kl import TERM as KL_TERM
from agentgrpo.grpo.kl import less_kl
from agentgrpo.grpo.samples import Credit, group_advantages, is_degenerate, to_samples
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rollout.metrics import rollout_metrics
from agentgrpo.rollout.scoring import keep_informative, refuse_failures
from agentgrpo.run.parts import Carried, Parts, kept_for_replay, to_replay
from agentgrpo.run.rollouts import RolledOut
from agentgrpo.training.process_group import once


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a step's rollout teaches."""

    samples: Sequence[TrainingSample]
    tags: Mapping[str, float]
    carried: Carried
    """What the step hands on."""


def study(parts: Parts, step: int, rolled: RolledOut, carried: Carried) -> Lesson:
    """Record the rollout, then choose and credit what is trained on: the step's informative groups and, where they are
    fewer than rollout.tasks_per_step, groups of earlier steps (algorithm.replay_groups). Raises TooManyFailures."""
    algorithm = parts.trainer.algorithm
    paid, kl_tags = _less_kl(parts, rolled.scored)
    kept, reasons = keep_informative(
        paid, oldest_version=step - algorithm.max_staleness, is_degenerate=partial(is_degenerate, algorithm=algorithm)
    )
    taken = {group.group.task.id for group in kept}
    replayed = to_replay(carried.replay, parts.rollout.tasks_per_step - len(kept), taken=taken)
    advantages = group_advantages([*paid, *replayed], algorithm)
    of_rolled, of_replayed = advantages[: len(rolled.scored)], advantages[len(rolled.scored) :]
    with parts.clock.stage(Stage.RECORDS):
        once(
            parts.world,
            lambda: write_trajectories(
                Path(parts.run.dir) / "trajectories" / f"train-{step:06d}.jsonl",
                scored=rolled.scored,
                advantages=of_rolled,
                dropped=reasons,
                step=step,
                seed=parts.run.seed,
                environment=parts.runner.environment.name,
                record_tokens=parts.run.record_tokens,
            ),
        )
        figures = parts.runner.figures
        cost_of = partial(figures.cost, prices=figures.priced(parts.run.eval.prices))
        tags = {**rollout_metrics(rolled.scored, reasons, cost_of), **rolled.tags, **kl_tags}
    refuse_failures(rolled.scored, max_error_fraction=parts.run.max_error_fraction)
    groups = [*kept, *replayed]
    used = [a for a, reason in zip(of_rolled, reasons, strict=True) if reason is None] + of_replayed
    if algorithm.mask_truncated:  # of use for the group's statistics, not to learn from: its end is not its own
        used = [
            [None if e.is_truncated else a for e, a in zip(group.group.episodes, values, strict=True)]
            for group, values in zip(groups, used, strict=True)
        ]
    credited = [a for group in used for credit in group for a in _values(credit)]
    tags["advantages/std"] = pstdev(credited) if credited else 0.0
    if algorithm.replay_groups:
        tags["groups/replayed"] = float(len(replayed))
    curriculum = parts.order.curriculum
    carried = replace(
        carried,
        rates=curriculum.observe(carried.rates, rolled.scored) if curriculum else {},
        replay=kept_for_replay(carried.replay, kept, algorithm.replay_groups),
    )
    return Lesson(samples=to_samples(groups, used), tags=tags, carried=carried)


def _values(credit: Credit) -> Sequence[float]:
    return credit if isinstance(credit, tuple) else () if credit is None else (credit,)


def _less_kl(parts: Parts, scored: Sequence[ScoredGroup]) -> tuple[Sequence[ScoredGroup], dict[str, float]]:
    """With algorithm.kl_in=reward the groups less their KL to the reference, on every process alike, and its tags."""
    algorithm = parts.trainer.algorithm
    if not algorithm.has_kl_reward:
        return scored, {}
    samples = to_samples(scored, [[None if r is None else 0.0 for r in group.rewards] for group in scored])
    estimates = []
    for sample, reference in zip(samples, parts.trainer.reference_logprobs(samples), strict=True):
        at_sampling = [x for x, is_loss in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if is_loss]
        logprobs = torch.tensor(at_sampling, dtype=torch.float64)
        estimates.append(algorithm.token_kl(logprobs, logprobs, reference.double()).tolist())
    paid = less_kl(scored, estimates, algorithm.kl_coef)
    penalties = [-r.terms[KL_TERM] for group in paid for r in group.rewards if r is not None]
    tokens = [kl for of_sample in estimates for kl in of_sample]
    return paid, {KL_TERM: fmean(penalties), "policy/kl": fmean(tokens)} if tokens else {}
