"""What eval.json reports of memory agents: right answers, and how much was written down for them."""

from __future__ import annotations

from agentgrpo.agents.base import Figures, correctness, metric

_COUNTED = (
    "memory_tokens",
    "compression",
    "validity",
    "calls_per_chunk",
    "memory_share",
    "calls",
    "failed_calls",
    "stray",
    "skips",
    "entries",
    "empty_memory",
    "truncated_chunks",
)

MEMORY_FIGURES = Figures(
    columns={"correctness": correctness} | {name: metric(name) for name in _COUNTED},
    headline=("correctness", "memory_tokens", "compression", "validity", "calls_per_chunk", "cost"),
    by_kind=("correctness", "memory_tokens", "compression", "calls_per_chunk"),
    quality="correctness",
    thrift="memory_tokens",
    labels={"calls_per_chunk": "calls/chunk"},
    counts={"write": "executed", "read": "reader_calls"},
    prices={"write": 0.01, "read": 0.01},
)
