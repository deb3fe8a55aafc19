"""Disagreements between a model and its tokenizer over token ids: how the run handles them, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.core.errors import ConfigError
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.tokens import added_tokens
from agentgrpo.training.policy import Policy

NAMED = 5


def settle_tokens(renderer: Renderer, policy: Policy) -> Iterator[str]:
    """Let the model's own end tokens also end turns, and find tokens without an embedding. Yields notes for the user.
    Raises ConfigError if a token that ends turns has no embedding."""
    tokenizer, vocabulary = policy.tokenizer, policy.vocabulary
    if odd := [i for i in renderer.stop_token_ids if i >= vocabulary.rows]:
        raise ConfigError(
            f"the tokenizer ends turns with {renderer.decode(odd[:1])!r} ({odd[0]}), and the model has embeddings for "
            f"{vocabulary.rows} ids alone: no turn would ever end; give the model its own tokenizer, or the embeddings "
            "of the new tokens (resize_token_embeddings)"
        )
    if beyond := vocabulary.beyond:
        named = ", ".join(map(repr, beyond[:NAMED]))
        yield (
            f"{len(beyond)} tokens of the tokenizer have no embedding in the model, such as {named}: a text that holds "
            "one cannot be read, and none is ever sampled"
        )
    source, ends = policy.ends
    control = {*added_tokens(tokenizer).values(), *tokenizer.all_special_ids}
    for i in ends:
        if i in renderer.stop_token_ids:
            continue
        said = f"{source} ends turns with {renderer.decode([i])!r} ({i}) too"
        if i in control:
            renderer.stop_token_ids = (*renderer.stop_token_ids, i)
            yield f"{said}, and so does this run"
        else:
            yield f"{said}, which is no control token of the tokenizer: here it ends none"
