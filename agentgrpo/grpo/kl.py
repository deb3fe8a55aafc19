"""Estimators of KL(policy || reference) from the log-probs of sampled tokens, used as a loss term or in the reward.

Let d = logprob - ref_logprob for a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020). Each
estimator maps [M] -> [M] and is differentiable in `logprobs` alone. |d| is clamped at 20. At d = 0 every estimator is 0
and, except for k1, has zero gradient:

    name     value            gradient by logprob  value as a KL estimate      expected gradient, on-policy
    k1       d                1                    unbiased, high variance     zero (no regulariser at all)
    k2, mse  d^2 / 2          d                    biased, low variance        gradient of KL(policy || reference)
    k3       exp(-d) - 1 + d  1 - exp(-d)          unbiased, low variance      gradient of KL(reference || policy)
    abs      |d|              sign(d)              biased upwards              not the gradient of any divergence

k3 is the estimator of GRPO (arXiv 2402.03300, equation 4), also known as low_var_kl. Multiplied by the ratio of the
policy to the sampling policy (`Algorithm.kl_importance`; DeepSeek-V3.2, arXiv 2512.02556), k1 and k3 have the gradient
of KL(policy || reference), both on-policy and off-policy. To add an estimator, write one function and add one line to
KL_ESTIMATORS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor

from agentgrpo.core.types import Episode, RewardResult, ScoredGroup
from agentgrpo.grpo.losses import log_ratio
from agentgrpo.grpo.samples import turn_rewards


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    d = log_ratio(logprobs, ref_logprobs)
    return (-d).expm1() + d


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs).abs()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "mse": k2,
}


# --- The KL term as part of the reward: each turn is charged for how far its tokens are from the reference.
#
#     turn reward <- turn reward - kl_coef * sum of the KL estimate over the tokens sampled in the turn
#
# Branch rewards, if given, are charged the same way: each branch for its own tokens.
#
# PPO for language models (arXiv 1909.08593, equation 2; arXiv 2009.01325) and RLOO (arXiv 2402.14740, equation 2) do
# this with k1 as the estimate: log p(token) when sampled - log p(token) under the reference. The estimate is a
# constant, so the gradient comes from the policy alone: with k1 it is the gradient of KL(policy || reference) over
# whole answers.

TERM = "policy/kl_reward"
"""The name of the penalty among the reward terms; no term of a config may have this name."""


def less_kl(scored: Sequence[ScoredGroup], token_kl: Sequence[Sequence[float]], coef: float) -> list[ScoredGroup]:
    """Return `scored` with the KL penalty subtracted from every total, turn and branch reward, and recorded as a term.
    token_kl: one sequence per branch of every scored episode, in the order of `to_samples`, with the estimate at each
    trained token."""
    branches = iter(token_kl)
    return [
        replace(
            group,
            rewards=tuple(
                None if r is None else _less(e, r, list(islice(branches, len(e.branches))), coef)
                for e, r in zip(group.group.episodes, group.rewards, strict=True)
            ),
        )
        for group in scored
    ]


def _less(episode: Episode, reward: RewardResult, token_kl: Sequence[Sequence[float]], coef: float) -> RewardResult:
    paid: list[list[float]] = []
    for branch, of_branch in zip(episode.branches, token_kl, strict=True):
        tokens = iter(of_branch)
        counts = [len(s.token_ids) * s.is_trained for s in branch.segments if s.sampled]
        paid.append([coef * math.fsum(islice(tokens, count)) for count in counts])
    penalties = [p for of_branch in paid for p in of_branch]
    branches = tuple(b - math.fsum(p) for b, p in zip(reward.branches, paid, strict=bool(reward.branches)))
    turns = tuple(r - p for r, p in zip(turn_rewards(episode, reward), penalties, strict=True))
    penalty = math.fsum(penalties)
    terms = {**reward.terms, TERM: 0.0 - penalty}
    return replace(reward, total=reward.total - penalty, turns=turns, branches=branches, terms=terms)
