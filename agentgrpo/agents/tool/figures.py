"""What eval.json reports of tool agents: tasks solved, and what was called for them."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.agents.base import Figures, correctness, metric

PRICE = 0.01
"""Of one call of a tool for which run.eval.prices has none: no call is free unless it is said to be."""


def tool_figures(tools: Sequence[str]) -> Figures:
    """tools: the names of all that there are."""
    counts = {name: f"calls/{name}" for name in tools}
    counted = ("tool_calls", "failed_calls", "tool_turns", "invalid_calls", *counts.values())
    return Figures(
        columns={"success": correctness} | {name: metric(name) for name in counted},
        headline=("success", "tool_calls", "failed_calls", "tool_turns", "cost"),
        by_kind=("success", "tool_calls", "failed_calls"),
        quality="success",
        thrift="failed_calls",
        labels={"tool_calls": "calls", "failed_calls": "failed", "tool_turns": "turns"},
        counts=counts,
        prices=dict.fromkeys(counts, PRICE),
    )
