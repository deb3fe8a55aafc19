"""A reward for policies of random weights, which never answer: it differs from one episode to the next."""

from __future__ import annotations

from dataclasses import dataclass

from agentgrpo.core.types import Episode
from agentgrpo.rewards.terms import CORRECTNESS, Weighted


@dataclass(frozen=True, kw_only=True)
class Parity(Weighted):
    """The share of even numbers among the sampled token ids."""

    dimension = CORRECTNESS
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        sampled = [i for branch in episode.branches for s in branch.segments if s.sampled for i in s.token_ids]
        return self.weight * sum(i % 2 == 0 for i in sampled) / max(1, len(sampled))
