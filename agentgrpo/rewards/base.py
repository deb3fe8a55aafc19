"""What a reward is: a named weighted sum of terms over one episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentgrpo.types import Episode


class RewardTerm(Protocol):
    """One scorer; weights are its constructor's keywords. `dimension` is one of correctness, citation_support,
    retrieval_quality, search_efficiency. `is_cost`: charged at `cost_when_wrong` where the answer is wrong."""

    dimension: str
    is_cost: bool

    def __call__(self, episode: Episode, correctness: float) -> float:
        """The term's weighted value; `correctness` is the judge's grade, 0.0 for no answer."""
        ...


@runtime_checkable
class TurnTerm(RewardTerm, Protocol):
    """A term that knows which turn brought its value; of any other all of it comes with the last turn."""

    def per_turn(self, episode: Episode) -> Sequence[float]:
        """What each of Episode.turns brought, in order, as far as it was settled with the turn: what a later one could
        still change belongs to that, or turns are credited with a bias. The rest of the term's value comes with the
        last turn."""
        ...


@runtime_checkable
class BranchTerm(RewardTerm, Protocol):
    """A term that knows what each branch earned by itself; any other counts in full for every branch. Its value is the
    mean over the branches."""

    def per_branch(self, episode: Episode) -> Sequence[float]:
        """Of each of Episode.branches, in order, as weighted as the value is."""
        ...
