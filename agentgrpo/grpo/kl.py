"""Estimators of KL(policy || reference) from the log-probs of sampled tokens, used as a loss term or in the reward.

With d = logprob - ref_logprob of a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020); each
is [M] -> [M] and differentiable in `logprobs` alone. |d| is clamped at 20. At d = 0 all are 0, and all but k1 then have
no gradient either:

    name     value            gradient by logprob  its value estimates the KL  its gradient, on-policy, is on average
    k1       d                1                    unbiased, high variance     zero: no regulariser at all
    k2, mse  d^2 / 2          d                    biased, low variance        that of KL(policy || reference)
    k3       exp(-d) - 1 + d  1 - exp(-d)          unbiased, low variance      that of KL(reference || policy)
    abs      |d|              sign(d)              biased upwards              that of no divergence

k3 is GRPO's (arXiv 2402.03300, equation 4), also known as low_var_kl. Times the policy's ratio to the policy that
sampled (`Algorithm.kl_importance`; DeepSeek-V3.2, arXiv 2512.02556) k1 and k3 have the gradient of KL(policy ||
reference), on-policy and off. A new estimator is one function and one line of KL_ESTIMATORS.
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


# --- The KL term as part of the reward: each turn pays for how far its tokens took the policy from the reference.
#
#     turn reward <- turn reward - kl_coef * sum of the KL estimate over the tokens sampled in the turn
#
# and so with the rewards of branches, where there are any: each pays for its own tokens.
#
# As PPO for language models has it (arXiv 1909.08593, equation 2; arXiv 2009.01325) and RLOO (arXiv 2402.14740,
# equation
# 2), whose estimate is k1: log p(token) when sampled - log p(token) of the reference. The estimate is a number, so its
# gradient is that of the policy: with k1 that of KL(policy || reference), whole answers at a time.

TERM = "policy/kl_reward"
"""The penalty's name among the terms; no term of a config can have it."""


def less_kl(scored: Sequence[ScoredGroup], token_kl: Sequence[Sequence[float]], coef: float) -> list[ScoredGroup]:
    """`scored` with the penalty taken off every total, turn and branch, and among the terms. token_kl: of each branch
    of every scored episode, in order, the estimate at each of its trained tokens (the samples of `to_samples`)."""
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
