"""What an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made. Every computed token is counted once: decode, prefill or replayed."""

    steps: int = 0
    """Forward passes; one that decodes beside a prefill is not counted again."""
    decode_tokens: int = 0
    """Tokens computed one by one, each of which drew the next."""
    prefill_tokens: int = 0
    """Prompt and observation tokens."""
    copied_tokens: int = 0
    """Prompt tokens that were not computed but copied from another episode of the group."""
    replayed_tokens: int = 0
    """Tokens computed again after an eviction."""
    graph_steps: int = 0
    """Forward passes over rows, of decoding episodes alone: replayed, where the model can be recorded."""
    graph_captures: int = 0
    """How many kinds of them were recorded, and recorded again after their memory had grown."""
    row_tokens: int = 0
    """Tokens that the rows which recorded steps read have room for now, beside `peak_kv_tokens`."""
    moved_tokens: int = 0
    """Tokens whose keys and values were copied to where recorded steps read them, or away from there."""
    evictions: int = 0
    """Times an episode's keys and values were given up before its release."""
    peak_kv_tokens: int = 0
    """Most tokens that keys and values had room for at once."""
