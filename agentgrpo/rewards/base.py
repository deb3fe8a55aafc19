"""The interfaces of rewards: weighted terms over one episode, and the reward that scores each episode of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

from agentgrpo.core.errors import EpisodeError
from agentgrpo.core.types import Episode, EpisodeGroup, Outcome, ScoredGroup, ToolRecord


class RewardTerm(Protocol):
    """One scorer; its constructor takes the weights as keywords. `dimension` is the name under which the records sum
    its value: correctness (the terminal reward) or another name. `is_cost`: if the answer is wrong, only the share
    `cost_when_wrong` is charged."""

    dimension: str
    is_cost: bool

    def __call__(self, episode: Episode, correctness: float) -> float:
        """The term's weighted value; `correctness` is the judge's grade, 0.0 for no answer."""
        ...


class GroupReward(Protocol):
    """rewards.reward.Reward, or that of a suite."""

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        """Every episode's reward; None for an episode that could not be scored."""
        ...

    def judge_counts(self) -> Mapping[str, float]:
        """The judge's counts so far (judges.base.CountingJudge); empty if the judge counts nothing."""
        ...


@runtime_checkable
class TurnTerm(RewardTerm, Protocol):
    """A term that divides its value among the turns; the value of any other term is credited to the last turn."""

    def per_turn(self, episode: Episode) -> Sequence[float]:
        """The credit of each of Episode.turns, in order: the part of the value that later turns cannot change. A part
        that a later turn can change belongs to the later turn, or credit is biased. The rest of the term's value is
        credited to the last turn."""
        ...


@runtime_checkable
class BranchTerm(RewardTerm, Protocol):
    """A term that gives each branch a separate value; its own value is their mean. Any other term counts in full for
    every branch."""

    def per_branch(self, episode: Episode) -> Sequence[float] | None:
        """The weighted value of each of Episode.branches, in order; None = all branches get the term's value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TermScore:
    """A term's score of one episode."""

    value: float | None = None  # weighted; None = the term does not apply, and only the other terms count
    parts: Mapping[str, float] = field(default_factory=dict)  # further numbers, for the records
    reason: str = ""  # a text, for the records


@runtime_checkable
class GroupTerm(Protocol):
    """An async term that scores all episodes of a group at once."""

    dimension: str
    is_cost: bool

    async def of_group(self, episodes: Sequence[Episode]) -> Sequence[TermScore | EpisodeError]:
        """The score of each episode, or the error that prevented it."""
        ...


# --- Numbers from the record of an episode's tool calls: one per sampled turn, in order.


def count(episode: Episode, counts: Callable[[ToolRecord], bool]) -> list[int]:
    """The number of calls of each turn that `counts` accepts."""
    found = [0] * len(episode.turns)
    for record in episode.tool_records:
        if counts(record) and record.turn < len(found):
            found[record.turn] += 1
    return found


def is_sent(record: ToolRecord) -> bool:
    """Whether the call is a search whose query was sent, not refused."""
    return record.name == "search" and record.outcome is Outcome.SUCCESS


def rounds(episode: Episode) -> list[int]:
    """1 for each turn in which a search sent a query, else 0."""
    return [min(n, 1) for n in count(episode, is_sent)]


def is_success(record: ToolRecord) -> bool:
    return record.outcome is Outcome.SUCCESS


def steps(totals: Sequence[float]) -> list[float]:
    """The difference of each total to the one before it; the first is compared with 0."""
    return [after - before for before, after in pairwise([0.0, *totals])]


def success(weight: float, episode: Episode) -> list[float]:
    """The change that each turn makes to weight · successful / all calls so far, which is 0 before the first call."""
    succeeded, made = accumulate(count(episode, is_success)), accumulate(count(episode, lambda call: True))
    return steps([weight * n / max(calls, 1) for n, calls in zip(succeeded, made, strict=True)])


def weighed(weight: float, counts: Sequence[int], counted: float) -> list[float]:
    """weight · counts; zeros if the counts do not add up to `counted`, the count of the whole episode."""
    return [weight * n for n in counts] if sum(counts) == counted else [0.0] * len(counts)
