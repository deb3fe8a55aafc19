"""Limits of the in-process engine, each with an error of one line."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.cache import bucketed


def refuse_least(**given: int) -> None:
    """Raise ConfigError for the first value below 1."""
    for name, value in given.items():
        if value < 1:
            raise ConfigError(f"engine: {name}={value} was given; it must be at least 1")


def refuse_context(max_context: int, limit: int, kv_budget: int | None) -> None:
    """Raise ConfigError unless 2 <= max_context <= `limit` (the model's own), and if kv_budget cannot hold one such
    context."""
    if not 2 <= max_context <= limit:
        raise ConfigError(
            f"engine: max_context={max_context} was given; it must be between 2 and the model's own {limit}"
        )
    if kv_budget is not None and kv_budget < bucketed(max_context):
        raise ConfigError(
            f"engine: kv_budget={kv_budget} was given; one episode of max_context={max_context} tokens needs "
            f"{bucketed(max_context)}; raise kv_budget, or lower max_context"
        )


def refuse_other_attention(model: PreTrainedModel, max_context: int) -> None:
    """Raise ConfigError for layers whose attention the engine cannot replace. A sliding window as long as the longest
    context makes no difference."""
    config, kind = model.config.get_text_config(), type(model).__name__
    types: Sequence[str] | None = getattr(config, "layer_types", None)  # None: a window, if any, applies to all layers
    others = {*(types or ())} - {"full_attention", "sliding_attention"}
    if getattr(config, "attn_logit_softcapping", None) is not None:
        others.add("soft-capped")
    if others or not model._can_set_attn_implementation():
        raise ConfigError(
            f"engine: {kind} with {', '.join(sorted(others)) or 'other'} layers was given; engine and trainer run "
            "models whose layers use full attention through transformers' attention interface; choose such a model: "
            "Qwen 2.5 and 3, Llama, SmolLM, Mistral, Gemma 1"
        )
    window = getattr(config, "sliding_window", None) if types is None or "sliding_attention" in types else None
    if window is not None and window < max_context:
        raise ConfigError(
            f"engine: {kind} looks back {window} tokens in some layers, and max_context={max_context}; "
            f"engine and trainer run full attention only: set engine.max_context={window}, or choose "
            "a model without a window, such as Qwen 2.5 and 3, or Llama"
        )
