"""The terms of the tool agent's reward: whether calls succeed, what they find and what they cost.

The terms read the record of the calls (Episode.tool_records) and the texts shown to the policy, so they suit every
agent that calls tools. Each amount is credited to the turn of the call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Episode, Outcome, ToolRecord
from agentgrpo.rewards.base import count, is_success, steps, success
from agentgrpo.rewards.terms import (
    CITATION_SUPPORT,
    RETRIEVAL_QUALITY,
    SEARCH_EFFICIENCY,
    Penalty,
    Weighted,
    has_answer,
    read,
)

MILESTONES = "milestones"
"""Key of a task's metadata: texts that tool results must show on the way to the answer."""


def is_invalid(record: ToolRecord) -> bool:
    """Whether the call is malformed, or names a tool that does not exist: the policy's fault."""
    return record.outcome in (Outcome.INVALID_ARGS, Outcome.TOOL_NOT_FOUND)


class ToolSuccess(Weighted):
    """w · successful / all calls; without a call, w if the answer is right, else 0. (Always 0 would pay for needless
    calls; always w would pay for no answer at all.) 0 without an answer, because a successful call is easy to make."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        calls = episode.tool_records
        if not calls:
            return self.weight * (correctness >= 1.0)
        return self.weight * has_answer(episode) * sum(map(is_success, calls)) / len(calls)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return success(self.weight * has_answer(episode), episode)


class Milestones(Weighted):
    """w · share of the task's milestones that tool results have shown, as whole words; 0 for a task without milestones,
    and without an answer, since finding them is only a means to answer. A result counts only in a turn with a
    successful call, and never for text that the policy has written before: an error that quotes a guess, or a guess
    written to a file and read again, finds nothing. Raises DataError if metadata.milestones is not a list of texts."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * self._shares(episode)[-1] * has_answer(episode)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        weight = self.weight * has_answer(episode)
        return steps([weight * share for share in self._shares(episode)[1:]])

    def _shares(self, episode: Episode) -> list[float]:
        """The share of milestones found before the first turn (0), and after each turn."""
        wanted = episode.task.metadata.get(MILESTONES, ())
        if isinstance(wanted, str) or not all(isinstance(text, str) and text for text in wanted):
            raise DataError(f"task {episode.task.id}: metadata.{MILESTONES}={wanted!r}; a list of texts is needed")
        left = [re.compile(rf"(?<!\w){re.escape(text)}(?!\w)") for text in wanted]
        succeeded = {record.turn for record in episode.tool_records if is_success(record)}
        shares, found = [0.0], 0
        for segment in (s for branch in episode.branches for s in branch.segments):
            in_sight = [pattern for pattern in left if pattern.search(segment.text)]
            if segment.sampled:
                left = [pattern for pattern in left if pattern not in in_sight]  # guessed
                shares.append(shares[-1])
            elif segment.role == "tool" and len(shares) - 2 in succeeded:
                left = [pattern for pattern in left if pattern not in in_sight]
                found += len(in_sight)
                shares[-1] = found / len(wanted) if wanted else 0.0
        return shares


@dataclass(frozen=True, kw_only=True)
class ToolCost:
    """The price of every call, whatever its outcome: `prices` by tool name, and `other` for a tool without a price.
    Raises ConfigError for a price above 0."""

    prices: Mapping[str, float]
    other: float
    dimension = SEARCH_EFFICIENCY
    is_cost = True

    def __post_init__(self) -> None:
        for name, price in {**self.prices, "other": self.other}.items():
            if isinstance(price, bool) or not isinstance(price, int | float) or not -math.inf < price <= 0:
                raise ConfigError(f"ToolCost {name}={price!r}: a price is a finite number, 0 or less; correct it")

    def __call__(self, episode: Episode, correctness: float) -> float:
        return math.fsum(self._price(call) for call in episode.tool_records)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        charged: list[list[float]] = [[] for _ in episode.turns]
        for call in episode.tool_records:
            charged[call.turn].append(self._price(call))
        return [math.fsum(prices) for prices in charged]

    def _price(self, call: ToolRecord) -> float:
        return self.prices.get(call.name, self.other)


class InvalidCalls(Penalty):
    """w for each call that is malformed, does not fit its tool's schema, or names a tool that does not exist. It is not
    a cost in the sense of `is_cost`: right and wrong answers are charged alike."""

    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * sum(map(is_invalid, episode.tool_records))

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return [self.weight * n for n in count(episode, is_invalid)]


class BadFormat(Penalty):
    """w, once, if a turn held neither a call nor an answer, or the episode ended without an answer."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * (not has_answer(episode) or read(episode, "format_error_turns") > 0)
