"""What a reward is: a named weighted sum of terms over one episode, and whoever gives each episode of a group one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

from agentgrpo.core.errors import EpisodeError
from agentgrpo.core.types import Episode, EpisodeGroup, Outcome, ScoredGroup, ToolRecord


class RewardTerm(Protocol):
    """One scorer; weights are its constructor's keywords. `dimension` is what its value is summed under in the records:
    correctness (the terminal reward) or a name of its own. `is_cost`: charged at `cost_when_wrong` where the answer is
    wrong."""

    dimension: str
    is_cost: bool

    def __call__(self, episode: Episode, correctness: float) -> float:
        """The term's weighted value; `correctness` is the judge's grade, 0.0 for no answer."""
        ...


class GroupReward(Protocol):
    """rewards.reward.Reward, or that of a suite."""

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        """Every episode's reward; None where it could not be scored."""
        ...

    def judge_counts(self) -> Mapping[str, float]:
        """What the judge has counted so far (judges.base.CountingJudge); empty where it counts nothing."""
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

    def per_branch(self, episode: Episode) -> Sequence[float] | None:
        """Of each of Episode.branches, in order, as weighted as the value is; None = the same for all of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TermScore:
    """What a term says of one episode."""

    value: float | None = None  # weighted; None = the term does not apply, and the others alone count
    parts: Mapping[str, float] = field(default_factory=dict)  # further numbers, for the records
    reason: str = ""  # and texts


@runtime_checkable
class GroupTerm(Protocol):
    """A term that is asked about all episodes of a group at once, and awaited."""

    dimension: str
    is_cost: bool

    async def of_group(self, episodes: Sequence[Episode]) -> Sequence[TermScore | EpisodeError]:
        """Of each episode what the term says, or why it could not."""
        ...


# --- What the record of an episode's tool calls says about its turns: one number per sampled turn, in order.


def count(episode: Episode, counts: Callable[[ToolRecord], bool]) -> list[int]:
    """How many calls of each turn count."""
    found = [0] * len(episode.turns)
    for record in episode.tool_records:
        if counts(record) and record.turn < len(found):
            found[record.turn] += 1
    return found


def is_sent(record: ToolRecord) -> bool:
    """A query that was sent, not refused."""
    return record.name == "search" and record.outcome is Outcome.SUCCESS


def rounds(episode: Episode) -> list[int]:
    """1 for a turn whose search sent a query."""
    return [min(n, 1) for n in count(episode, is_sent)]


def is_success(record: ToolRecord) -> bool:
    return record.outcome is Outcome.SUCCESS


def steps(totals: Sequence[float]) -> list[float]:
    """What each of `totals` adds to the one before it."""
    return [after - before for before, after in pairwise([0.0, *totals])]


def success(weight: float, episode: Episode) -> list[float]:
    """What each turn adds to weight · successful / all calls so far; 0 before the first call."""
    succeeded, made = accumulate(count(episode, is_success)), accumulate(count(episode, lambda call: True))
    return steps([weight * n / max(calls, 1) for n, calls in zip(succeeded, made, strict=True)])


def weighed(weight: float, counts: Sequence[int], counted: float) -> list[float]:
    """weight · counts; nothing where the record does not account for what was `counted` in the whole episode."""
    return [weight * n for n in counts] if sum(counts) == counted else [0.0] * len(counts)
