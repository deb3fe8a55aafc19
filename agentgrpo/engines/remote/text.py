"""Turns that arrive as text: where they end in our tokens that spell them, and how many of these tokens fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.base import SamplingParams

Decode = Callable[[Sequence[int]], str]


def refuse_grammar(sampling: SamplingParams) -> None:
    """Raise EngineError if the turn is to be held to a grammar: no server tells which tokens it left to choose from, so
    the trainer could not take the log-probs under the same distribution."""
    if sampling.grammar:
        raise EngineError(
            "structured output and forced calls need the built-in engine (engine=hf): this engine does not tell which "
            "tokens it left to choose from, so log-probs would not be exact",
            kind="grammar",
        )


def room_for(token_ids: Sequence[int], sampling: SamplingParams, max_context: int) -> int:
    """Return the number of tokens that may be sampled. Raises EngineError if it would be 0, and as refuse_grammar."""
    refuse_grammar(sampling)
    room = min(sampling.max_tokens, max_context - len(token_ids))
    if room < 1:
        raise EngineError(
            f"generate: a context of {len(token_ids)} tokens was given, max_context is {max_context} and one token "
            "must be left to sample; end the episode before, or raise max_context",
            kind="context_overflow",
        )
    return room


def end_of(tokens: Sequence[int], sampling: SamplingParams, decode: Decode) -> int:
    """Return the number of tokens up to and including the first one that ends the turn, else the number of all
    tokens."""
    stopped = next((n for n, token in enumerate(tokens, start=1) if token in sampling.stop_token_ids), len(tokens))
    if not sampling.stop:
        return stopped
    # a longer prefix still contains the text of a shorter one, so the first prefix with a stop string can be bisected
    return bisect_left(range(stopped), True, key=lambda n: _has_stop(tokens[:n], sampling, decode))


def is_ended(tokens: Sequence[int], sampling: SamplingParams, decode: Decode) -> bool:
    """Return whether `tokens`, a turn already cut at `end_of`, ends with a stop token or a stop string."""
    return (bool(tokens) and tokens[-1] in sampling.stop_token_ids) or _has_stop(tokens, sampling, decode)


def _has_stop(tokens: Sequence[int], sampling: SamplingParams, decode: Decode) -> bool:
    text = decode(tokens) if sampling.stop else ""
    return any(s in text for s in sampling.stop)
