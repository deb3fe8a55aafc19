"""An episode's metrics: a pure function of its events, with every name always present."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from agentgrpo.core.types import Exit
from agentgrpo.environments.figures import Figures

ADDITIVE = (
    "calls",
    "executed",
    "failed_calls",
    "skips",
    "malformed",
    "over_limit",
    "stray",
    "inserts",
    "updates",
    "deletes",
    "judged",
    "valid",
    "wanted",
    "knows_wanted",
)
"""Metrics of an episode that are sums over its chunks (Episode.metrics_by_turn). calls: all calls, well-formed or not.
executed: calls that changed the memory, i.e. inserts, updates and deletes. skips: explicit skips. failed_calls: all
other calls, including malformed calls and calls over the limit. stray: 1 for a chunk with text outside of calls.
judged, valid, wanted: environments.memory.base.ChunkGrade. knows_wanted: 1 if the chunk's `wanted` is known; an unknown
`wanted` counts 0."""
_WHOLE = (
    "chunks",
    "questions",
    "reader_calls",
    "entries",
    "empty_memory",
    "memory_tokens",
    "chunk_tokens",
    "memory_share",
    "compression",
    "calls_per_chunk",
    "validity",
    "truncated_chunks",
)
NAMES = frozenset({*ADDITIVE, *_WHOLE, *(f"exit_{e.value}" for e in Exit)})


def by_turn(counts: Sequence[Counter[str]]) -> dict[str, tuple[float, ...]]:
    """counts: the counts of each chunk."""
    return {name: tuple(float(count[name]) for count in counts) for name in ADDITIVE}


def episode_metrics(
    counts: Sequence[Counter[str]],
    *,
    questions: int,
    is_empty: bool,
    entries: float,
    memory_tokens: float,
    chunk_tokens: int,
) -> dict[str, float]:
    """Return the sums of `counts`, the counts of each chunk, and:

    entries := entries of the memory after the last chunk, including the core paragraph
    memory_share := memory_tokens / chunk_tokens, of the memory after the last chunk and of all chunks
    compression := 1 - memory_share; negative if the memory is longer than the chunks
    validity := mean of valid / judged over the chunks that have a judged change; 0 if no chunk has
    reader_calls := questions that the reader was asked; 0 if the memory has no entry
    empty_memory := 1 for a memory without an entry, or whose entries were all judged invalid
    truncated_chunks := chunks that were cut to fit into the context
    """
    total = Counter(chain.from_iterable(count.elements() for count in counts))
    chunks, share = len(counts), memory_tokens / chunk_tokens
    metrics = {name: float(total[name]) for name in ADDITIVE}
    metrics |= {
        "chunks": float(chunks),
        "questions": float(questions),
        "reader_calls": float(questions if entries else 0),
        "entries": float(entries),
        "empty_memory": float(is_empty),
        "memory_tokens": float(memory_tokens),
        "chunk_tokens": float(chunk_tokens),
        "memory_share": share,
        "compression": 1 - share,
        "calls_per_chunk": total["calls"] / chunks,
        "validity": fmean([count["valid"] / count["judged"] for count in counts if count["judged"]] or [0.0]),
        "truncated_chunks": float(total["truncated_chunks"]),
    }
    return metrics


# --- The figures of the memory environment in eval.json: right answers, and how much was written down for them.

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
    columns=_COUNTED,
    headline=("correctness", "memory_tokens", "compression", "validity", "calls_per_chunk", "cost"),
    by_kind=("correctness", "memory_tokens", "compression", "calls_per_chunk"),
    quality="correctness",
    spending="memory_tokens",
    labels={"calls_per_chunk": "calls/chunk"},
    counts={"write": "executed", "read": "reader_calls"},
    prices={"write": 0.01, "read": 0.01},
)
