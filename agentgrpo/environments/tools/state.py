"""The state of a tool episode: its calls, its answer, its counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgrpo.core.messages import AnyCall, MalformedCall
from agentgrpo.core.types import Outcome, ToolRecord
from agentgrpo.environments.figures import Figures

LOOP = 3
"""Identical calls in a row that make a loop."""


@dataclass(slots=True, kw_only=True)
class ToolState:
    """The state of one episode. `counts` holds the metrics that are counted as they happen, by metric name."""

    records: list[ToolRecord] = field(default_factory=list)
    answer: str | None = None
    format_errors: int = 0
    """Format errors in a row."""
    counts: Counter[str] = field(default_factory=Counter)
    is_looping: bool = False
    made: Counter[str] = field(default_factory=Counter)
    """How often each call was made."""
    last: str = ""
    in_a_row: int = 0
    """How often the last call was made in a row."""

    def note(self, calls: Sequence[AnyCall], records: Sequence[ToolRecord], *, num_refused: int) -> None:
        """Record one turn's calls and their outcomes; the last `num_refused` were over the call limit."""
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
    """Return a key that is equal for the same tool and arguments, in any order."""
    if isinstance(call, MalformedCall):
        return f"malformed {call.text}"
    try:
        return f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
    except RecursionError:  # brackets nested too deeply
        return f"{call.name} too deep"


# --- An episode's metrics: a pure function of what happened, every name always present.

COUNTED = ("tool_turns", "repeated_calls", "parallel_calls", "call_limit_hits", "format_error_turns")
"""Counted as they happen. tool_turns: turns that called a tool, malformed calls included. repeated_calls: calls that
were made before in the episode, with the same arguments. parallel_calls: calls made beside others in one turn.
call_limit_hits: calls refused because the limit of calls was reached."""
_POLICY_FAULTS = (Outcome.INVALID_ARGS, Outcome.TOOL_NOT_FOUND)


def episode_metrics(state: ToolState, *, tools: Sequence[str]) -> dict[str, float]:
    """tools: the names of all tools.

    tool_calls := calls of any kind, as the policy wrote them
    calls/<tool>, failures/<tool> := calls of one tool, and its failed calls
    failed_calls := calls whose outcome is not success
    invalid_calls := failed calls that are the policy's fault: malformed, unknown tool, wrong arguments, over the limit
    tool_success := successful calls / calls; 1 without any
    looping := 1 after three identical calls in a row
    truncated_outputs := results that were cut, so that the policy saw only the beginning
    """
    records = state.records
    failed = [r for r in records if r.outcome is not Outcome.SUCCESS]
    calls, failures = Counter(r.name for r in records), Counter(r.name for r in failed)
    metrics = {name: float(state.counts[name]) for name in COUNTED}
    metrics |= {
        "tool_calls": float(len(records)),
        "failed_calls": float(len(failed)),
        "invalid_calls": float(sum(r.outcome in _POLICY_FAULTS for r in failed)),
        "tool_success": 1 - len(failed) / len(records) if records else 1.0,
        "looping": float(state.is_looping),
        "truncated_outputs": float(sum(r.was_cut for r in records)),
    }
    metrics |= {f"calls/{name}": float(calls[name]) for name in tools}
    metrics |= {f"failures/{name}": float(failures[name]) for name in tools}
    return metrics


# --- The figures of the tool environment in eval.json: tasks solved, and the calls made for them.

PRICE = 0.01
"""Price of one call of a tool without a price in run.eval.prices: no call is free unless it is set to be."""


def tool_figures(tools: Sequence[str], quality: str | None = None) -> Figures:
    """tools: the names of all tools. quality: the metric that says how good an episode is; None = the judge's
    grade."""
    best = quality or "success"
    counts = {name: f"calls/{name}" for name in tools}
    counted = ("tool_calls", "failed_calls", "tool_turns", "invalid_calls", *counts.values())
    return Figures(
        columns=counted,
        headline=(best, "tool_calls", "failed_calls", "tool_turns", "cost"),
        by_kind=(best, "tool_calls", "failed_calls"),
        quality=best,
        is_graded=quality is None,
        spending="failed_calls",
        labels={"tool_calls": "calls", "failed_calls": "failed", "tool_turns": "turns"},
        counts=counts,
        prices=dict.fromkeys(counts, PRICE),
    )
