"""What a tool episode knows: its calls, its answer, its counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgrpo.protocol import AnyCall, MalformedCall
from agentgrpo.types import ToolRecord

LOOP = 3
"""Identical calls in a row that make a loop."""


@dataclass(slots=True, kw_only=True)
class ToolState:
    """The state of one episode. `counts` holds the metrics that are counted as they happen, by metric name."""

    records: list[ToolRecord] = field(default_factory=list)
    answer: str | None = None
    format_errors: int = 0
    """In a row."""
    counts: Counter[str] = field(default_factory=Counter)
    is_looping: bool = False
    made: Counter[str] = field(default_factory=Counter)
    """How often each call was made."""
    last: str = ""
    in_a_row: int = 0
    """How often the last call was made in a row."""

    def note(self, calls: Sequence[AnyCall], records: Sequence[ToolRecord], *, num_refused: int) -> None:
        """One turn's calls, and how each ended; the last `num_refused` were over the limit of calls."""
        self.records.extend(records)
        self.counts["tool_turns"] += 1
        self.counts["call_limit_hits"] += num_refused
        self.counts["parallel_calls"] += len(calls) if len(calls) > 1 else 0
        for call in calls:
            same = _identity(call)
            self.counts["repeated_calls"] += self.made[same] > 0
            self.made[same] += 1
            self.in_a_row = self.in_a_row + 1 if same == self.last else 1
            self.last = same
            self.is_looping |= self.in_a_row >= LOOP


def _identity(call: AnyCall) -> str:
    """Equal for the same tool and arguments, in whatever order they were written."""
    if isinstance(call, MalformedCall):
        return f"malformed {call.text}"
    try:
        return f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
    except RecursionError:  # a bottomless nest of brackets
        return f"{call.name} too deep"
