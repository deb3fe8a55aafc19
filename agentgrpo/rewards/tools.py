"""The terms of the tool agent's reward: whether calls succeed, what they find and what they cost.

They read the record of the calls (Episode.tool_records) and what the policy was shown, so they hold for every agent
that calls tools. Each is charged, or credited, to the turn that called."""

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
    """Malformed, or of a tool that does not exist: the policy's fault."""
    return record.outcome in (Outcome.INVALID_ARGS, Outcome.TOOL_NOT_FOUND)


class ToolSuccess(Weighted):
    """w · successful / all calls; without a call w where the answer is right, else 0. (Were it 0 there, a question that
    needs no tool would pay for one; were it w, no answer at all would.) 0 without an answer: a call that succeeds is
    easy to make."""

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
    """w · share of the task's milestones that a tool result has shown, as words of their own; 0 for a task that names
    none, and without an answer: they are found to answer from. Results count only of turns of which a call succeeded,
    and never for what the policy has written before: an error that quotes a guess, and a guess written to a file and
    read again, have found nothing. Raises DataError where metadata.milestones is no list of texts."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * self._shares(episode)[-1] * has_answer(episode)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        weight = self.weight * has_answer(episode)
        return steps([weight * share for share in self._shares(episode)[1:]])

    def _shares(self, episode: Episode) -> list[float]:
        """Of what was shown before the first turn (0), and after each."""
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
    """The price of every call, whatever came of it: `prices` by tool name, `other` for any other. Raises ConfigError
    for a price above 0."""

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
    """w for each call that is malformed, does not fit its tool's schema, or names a tool that does not exist. No cost
    of a way to the answer: it is charged whether the answer is right or wrong."""

    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * sum(map(is_invalid, episode.tool_records))

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return [self.weight * n for n in count(episode, is_invalid)]


class BadFormat(Penalty):
    """w, once, where a turn held neither a call nor an answer, or the episode ended without an answer."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * (not has_answer(episode) or read(episode, "format_error_turns") > 0)
