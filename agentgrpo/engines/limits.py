"""What the in-process engine refuses, in one line each."""

from __future__ import annotations

from transformers import PreTrainedModel

from agentgrpo.engines.cache import bucketed
from agentgrpo.errors import ConfigError


def refuse_least(**given: int) -> None:
    """Raise ConfigError for the first that is below 1."""
    for name, value in given.items():
        if value < 1:
            raise ConfigError(f"engine: {name}={value} was given; it must be at least 1")


def refuse_context(max_context: int, limit: int, kv_budget: int | None) -> None:
    """limit: the model's own. Raises ConfigError."""
    if not 2 <= max_context <= limit:
        raise ConfigError(
            f"engine: max_context={max_context} was given; it must be between 2 and the model's own {limit}"
        )
    if kv_budget is not None and kv_budget < bucketed(max_context):
        raise ConfigError(
            f"engine: kv_budget={kv_budget} was given; one episode of max_context={max_context} tokens needs "
            f"{bucketed(max_context)}; raise kv_budget, or lower max_context"
        )


def refuse_other_attention(model: PreTrainedModel) -> None:
    """Raise ConfigError for layers of which the engine's attention is no drop-in."""
    layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"} or not model._can_set_attn_implementation():
        raise ConfigError(
            f"engine: {type(model).__name__} with {', '.join(sorted(layer_types))} layers was given; the hf engine "
            "runs models whose layers all use full attention through transformers' attention interface (Qwen, "
            "Llama, ...); choose such a model, or an engine that serves this one"
        )
