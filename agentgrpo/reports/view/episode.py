"""A recorded episode in the form of the page: a row of the index, and an object in a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from agentgrpo.core.types import Segment
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.view.pieces import TokenTexts

DIGITS = 4
"""Decimals of log-probs and ratios."""


class IndexRow(NamedTuple):
    """The fields by which episodes are listed, filtered and sorted."""

    step: int
    task: str
    sample: int
    kind: str
    exit: str
    status: str
    error: str | None
    dropped: str | None
    reward: float | None
    correctness: float | None
    advantage: float | None
    turns: int
    tokens: int
    calls: int
    cost: float
    seconds: float | None


def row_of(record: TrajectoryRecord, clock: Mapping[str, Any]) -> IndexRow:
    """clock: as in TrajectoryFile.clocks; {} = not measured."""
    error = record.error
    credit = [a for a in _listed(record.advantage) if a is not None]
    seconds = [value for value in clock.values() if isinstance(value, float | int)]
    return IndexRow(
        step=record.step,
        task=record.task,
        sample=record.sample_index,
        kind=str(record.metadata.get("kind", "")),
        exit=record.agent["exit"],
        status=record.status,
        error=f"{error['kind']}/{error['stage']}" if error else None,
        dropped=record.dropped,
        reward=record.reward,
        correctness=record.correctness,
        advantage=math.fsum(credit) / len(credit) if credit else None,
        turns=sum(message["sampled"] for message in record.agent["messages"]),
        tokens=record.response_len,
        calls=len(record.agent["tools"]),
        cost=math.fsum(cost for cost in record.costs.values() if cost is not None),
        seconds=math.fsum(seconds) if seconds else None,
    )


def episode_of(record: TrajectoryRecord, clock: Mapping[str, Any], pieces: TokenTexts | None) -> dict[str, Any]:
    """The episode as a JSON object; its messages have no ratios yet."""
    asked = (m["content"] for m in reversed(record.prompt_messages) if m["role"] == "user")
    return {
        "id": record.id,
        "task": record.task,
        "group": record.group,
        "metadata": record.metadata,
        "references": record.references,
        "question": next(asked, ""),
        "messages": list(_messages(record, pieces)),
        "tools": _tools(record, clock),
        "answer": record.answer,
        "reward": record.reward,
        "branch_rewards": record.reward_branches,
        "terms": record.reward_terms,
        "dimensions": record.reward_dimensions,
        "correctness": record.correctness,
        "reason": record.reason,
        "metrics": record.metrics,
        "costs": record.costs,
        "citations": record.citations,
        "retrieved_ids": record.retrieved_ids,
        "memory": record.memory,
        "error": record.error,
        "dropped": record.dropped,
        "status": record.status,
        "exit": record.agent["exit"],
        "policy_version": record.policy_version,
        "timings": {name: value for name, value in clock.items() if isinstance(value, float | int)},
    }


def segments_of(record: TrajectoryRecord) -> Iterator[Segment | None]:
    """The segment of each message, or None if tokens were not recorded."""
    numbers = dict.fromkeys(message["branch"] for message in record.agent["messages"])
    branches = {n: iter(b.segments) for n, b in zip(numbers, record.branches, strict=False)}
    for message in record.agent["messages"]:
        yield next(branches[message["branch"]]) if branches else None


def _messages(record: TrajectoryRecord, pieces: TokenTexts | None) -> Iterator[dict[str, Any]]:
    messages = record.agent["messages"]
    credits = _credits(record, sum(message["sampled"] for message in messages))
    for message, segment in zip(messages, segments_of(record), strict=True):
        text, sampled = message["content"], message["sampled"]
        yield {
            "branch": message["branch"],
            "role": message["role"],
            "sampled": sampled,
            "version": message["policy_version"],
            "text": text,
            "advantage": next(credits) if sampled else None,
            "pieces": pieces.of(segment.token_ids, text) if pieces and segment else None,
            "logprobs": rounded(segment.logprobs) if segment and segment.logprobs is not None else None,
            "ratios": None,
            "cut_short": message.get("cut_short", False),
        }


def _listed(advantage: float | list[Any] | None) -> list[float | None]:
    return advantage if isinstance(advantage, list) else [advantage]


def _credits(record: TrajectoryRecord, num_sampled: int) -> Iterator[float | None]:
    """The advantage of each sampled message."""
    if isinstance(record.advantage, list):
        return iter(record.advantage if len(record.advantage) == num_sampled else [None] * num_sampled)
    return repeat(record.advantage)


def _tools(record: TrajectoryRecord, clock: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = record.agent["tools"]
    seconds = clock.get("tools", [])
    if len(seconds) != len(calls):
        seconds = [None] * len(calls)
    return [
        {
            "turn": call["turn"],
            "name": call["name"],
            "arguments": call["arguments"],
            "outcome": call["outcome"],
            "detail": call["detail"],
            "num_results": call["num_results"],
            "result_ids": call["result_ids"],
            "cached": call["cached"],
            "cost": call["cost"],
            "seconds": taken,
            "was_cut": call["was_cut"],
        }
        for call, taken in zip(calls, seconds, strict=True)
    ]


def rounded(values: Sequence[float]) -> list[float | None]:
    """Round to DIGITS decimals; None replaces a number that is not finite."""
    if math.isfinite(sum(values)):
        return [round(value, DIGITS) or 0 for value in values]  # no -0.0
    return [(round(value, DIGITS) or 0) if math.isfinite(value) else None for value in values]
