"""What the record of an episode's tool calls says about its turns: one number per sampled turn, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from agentgrpo.types import Episode, Outcome, ToolRecord


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
