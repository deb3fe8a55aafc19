"""The KL term as part of the reward: each turn pays for how far its tokens took the policy from the reference.

    turn reward <- turn reward - kl_coef * sum of the KL estimate over the tokens sampled in the turn

and so with the rewards of branches, where there are any: each pays for its own tokens.

As PPO for language models has it (arXiv 1909.08593, equation 2; arXiv 2009.01325) and RLOO (arXiv 2402.14740, equation
2), whose estimate is k1: log p(token) when sampled - log p(token) of the reference. The estimate is a number, so its
gradient is that of the policy: with k1 that of KL(policy || reference), whole answers at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from agentgrpo.grpo.samples import turn_rewards
from agentgrpo.types import Episode, RewardResult, ScoredGroup

TERM = "policy/kl_reward"
"""The penalty's name among the terms; no term of a config can have it."""


def less_kl(scored: Sequence[ScoredGroup], token_kl: Sequence[Sequence[float]], coef: float) -> list[ScoredGroup]:
    """`scored` with the penalty taken off every total, turn and branch, and among the terms. token_kl: of each branch
    of every scored episode, in order, the estimate at each of its sampled tokens (the samples of `to_samples`)."""
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
        paid.append([coef * math.fsum(islice(tokens, len(s.token_ids))) for s in branch.segments if s.sampled])
    penalties = [p for of_branch in paid for p in of_branch]
    branches = tuple(b - math.fsum(p) for b, p in zip(reward.branches, paid, strict=bool(reward.branches)))
    turns = tuple(r - p for r, p in zip(turn_rewards(episode, reward), penalties, strict=True))
    penalty = math.fsum(penalties)
    terms = {**reward.terms, TERM: 0.0 - penalty}
    return replace(reward, total=reward.total - penalty, turns=turns, branches=branches, terms=terms)
