"""The training signal of a step besides rewards: KL to the reference, truncated episodes, and the state for the
next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

import torch

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.types import ScoredGroup
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.kl import TERM as KL_TERM
from agentgrpo.grpo.kl import less_kl
from agentgrpo.grpo.samples import Credit, to_samples
from agentgrpo.rollout.scoring import Drop
from agentgrpo.run.parts import StepState, kept_for_replay
from agentgrpo.tasks.order import Curriculum
from agentgrpo.training.trainer import Trainer


def with_kl_penalty(scored: Sequence[ScoredGroup], trainer: Trainer) -> tuple[Sequence[ScoredGroup], dict[str, float]]:
    """With algorithm.kl_in=reward, return the groups with KL to the reference subtracted, and its tags."""
    algorithm = trainer.algorithm
    if not algorithm.has_kl_reward:
        return scored, {}
    samples = to_samples(scored, [[None if r is None else 0.0 for r in group.rewards] for group in scored])
    estimates = []
    for sample, reference in zip(samples, trainer.reference_logprobs(samples), strict=True):
        assert sample.rollout_logprobs is not None, "what was demonstrated has no reward to take it off"
        at_sampling = [x for x, is_loss in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if is_loss]
        logprobs = torch.tensor(at_sampling, dtype=torch.float64)
        estimates.append(algorithm.token_kl(logprobs, logprobs, reference.double()).tolist())
    paid = less_kl(scored, estimates, algorithm.kl_coef)
    penalties = [-r.terms[KL_TERM] for group in paid for r in group.rewards if r is not None]
    tokens = [kl for of_sample in estimates for kl in of_sample]
    return paid, {KL_TERM: fmean(penalties), "policy/kl": fmean(tokens)} if tokens else {}


def less_zero_variance(
    reasons: Sequence[Drop | None], algorithm: Algorithm, rollout: RolloutSettings
) -> list[Drop | None]:
    """Return the drop reasons to apply. A zero-variance group stays: with advantage 0 it counts in every denominator,
    in KL and entropy, as published, unless algorithm.drop_zero_variance is set or other groups replace it
    (rollout.refill_rounds, algorithm.replay_groups)."""
    if algorithm.drop_zero_variance or algorithm.replay_groups or rollout.refill_rounds:
        return list(reasons)
    return [None if reason is Drop.ZERO_VARIANCE else reason for reason in reasons]


def less_truncated(groups: Sequence[ScoredGroup], credits: Sequence[Sequence[Credit]]) -> list[list[Credit]]:
    """Remove the credit of truncated episodes: they count in their group's statistics, but are not trained on, because
    the policy did not choose their end (algorithm.mask_truncated)."""
    return [
        [None if e.is_truncated else c for e, c in zip(group.group.episodes, of_group, strict=True)]
        for group, of_group in zip(groups, credits, strict=True)
    ]


def spread(credits: Sequence[Sequence[Credit]]) -> float:
    """Return the standard deviation of all advantages, by episode or by turn; 0 if there are none."""
    values = [
        value
        for of_group in credits
        for credit in of_group
        for value in (credit if isinstance(credit, tuple) else (credit,))
        if value is not None
    ]
    return pstdev(values) if values else 0.0


def what_stays(
    state: StepState,
    scored: Sequence[ScoredGroup],
    kept: Sequence[ScoredGroup],
    curriculum: Curriculum | None,
    replay_groups: int,
) -> StepState:
    """Return the state for the next step, after a step that rolled out `scored` and trains on `kept`."""
    rates = curriculum.observe(state.rates, scored) if curriculum else {}
    return replace(state, rates=rates, replay=kept_for_replay(state.replay, kept, replay_groups))
