"""How many tokens a forward pass may have."""

from __future__ import annotations

from transformers import PretrainedConfig


def fitting_tokens(config: PretrainedConfig, head_chunk_tokens: int) -> int:
    """Input tokens of a micro-batch such that what its forward pass keeps for the backward pass and a chunk's logits
    take somewhat more than a GiB in fp32; 1024 at least, below which the products get narrow, and 4096 at most, beyond
    which nothing is gained. Of a token one decoder layer keeps 18 vectors of hidden size and 6 of the feed-forward's
    (measured, Qwen2 with plain products)."""
    model = config.get_text_config()
    per_token: int = 4 * model.num_hidden_layers * (18 * model.hidden_size + 6 * model.intermediate_size)
    logits: int = 4 * head_chunk_tokens * model.vocab_size
    return max(1024, min(4096, (9 * 2**27 - logits) // per_token))
