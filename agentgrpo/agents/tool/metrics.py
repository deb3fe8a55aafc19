"""An episode's metrics: a pure function of what happened, every name always present."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentgrpo.agents.tool.state import ToolState
from agentgrpo.types import Exit, Outcome

COUNTED = ("tool_turns", "repeated_calls", "parallel_calls", "call_limit_hits", "format_error_turns")
"""Counted as they happen. tool_turns: turns that called a tool, malformed calls included. repeated_calls: calls that
were made before in the episode, with the same arguments. parallel_calls: calls made beside others in one turn.
call_limit_hits: calls refused because the limit of calls was reached."""
_POLICY_FAULTS = (Outcome.INVALID_ARGS, Outcome.TOOL_NOT_FOUND)


def episode_metrics(state: ToolState, *, exit: Exit, tools: Sequence[str]) -> dict[str, float]:
    """tools: the names of all that there are.

    tool_calls := calls of any kind, as the policy wrote them; calls/<tool>: those of it, failures/<tool>: of these
    failed_calls := calls whose outcome is not success
    invalid_calls := failed calls that are the policy's fault: malformed, unknown tool, wrong arguments, over the limit
    tool_success := successful calls / calls; 1 without any
    looping := 1 after three identical calls in a row
    truncated_outputs := results of which the policy saw only the beginning
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
    return metrics | {f"exit_{e.value}": float(e is exit) for e in Exit}
