"""The price of length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from agentgrpo.errors import ConfigError
from agentgrpo.rewards.terms import SEARCH_EFFICIENCY, Penalty
from agentgrpo.types import Episode


@dataclass(frozen=True, kw_only=True)
class Overlong(Penalty):
    """w · the share of `buffer_tokens` that the episode's sampled tokens have used up, the buffer being the last of
    `max_tokens`; w in full beyond that. With w = -1 the soft overlong punishment of DAPO (arXiv 2503.14476, equation
    13), whose max_tokens is 20480 and buffer_tokens 4096. Whether the answer is right plays no part in it."""

    max_tokens: int
    buffer_tokens: int
    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ConfigError(
                f"Overlong max_tokens={self.max_tokens}, buffer_tokens={self.buffer_tokens}: a buffer of 1 token or "
                "more, not larger than max_tokens, is allowed; correct them"
            )

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self._price(sum(b.num_sampled_tokens for b in episode.branches))

    def per_turn(self, episode: Episode) -> Sequence[float]:
        prices = [self._price(tokens) for tokens in accumulate((len(s.token_ids) for s in episode.turns), initial=0)]
        return [after - before for before, after in pairwise(prices)]

    def _price(self, sampled_tokens: int) -> float:
        over = sampled_tokens - (self.max_tokens - self.buffer_tokens)
        return self.weight * min(1.0, max(0, over) / self.buffer_tokens)
