"""What a reward is: a named weighted sum of terms over one episode."""

from __future__ import annotations

from typing import Protocol

from agentgrpo.types import Episode


class RewardTerm(Protocol):
    """One scorer; weights are its constructor's keywords. `dimension` is one of correctness, citation_support,
    retrieval_quality, search_efficiency. `is_cost`: charged at `cost_when_wrong` where the answer is wrong."""

    dimension: str
    is_cost: bool

    def __call__(self, episode: Episode, correctness: float) -> float:
        """The term's weighted value; `correctness` is the judge's grade, 0.0 for no answer."""
        ...
