"""Counters of an engine's work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was created. Every computed token is counted once: as decode, prefill or replayed."""

    steps: int = 0
    """Forward passes; a separate decoding pass beside a prefill is not counted again."""
    decode_tokens: int = 0
    """Tokens computed one by one, each drawing the next token."""
    prefill_tokens: int = 0
    """Prompt and observation tokens."""
    copied_tokens: int = 0
    """Prompt tokens that were copied from another episode instead of computed."""
    replayed_tokens: int = 0
    """Tokens recomputed after an eviction."""
    graph_steps: int = 0
    """Decoding passes over rows; they replay recorded graphs if the model can be recorded."""
    graph_captures: int = 0
    """Number of recorded graphs, including those recorded again after their memory had grown."""
    row_tokens: int = 0
    """Current capacity in tokens of the rows that recorded steps read, in addition to `peak_kv_tokens`."""
    moved_tokens: int = 0
    """Tokens whose keys and values were copied to or from the rows that recorded steps read."""
    evictions: int = 0
    """Number of times an episode's keys and values were freed before its release."""
    peak_kv_tokens: int = 0
    """Maximum number of tokens for which keys and values had room at once."""
