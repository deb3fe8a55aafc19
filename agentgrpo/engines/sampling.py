"""Counter-based sampling: the drawn token is a pure function of its logits, the run's seed and the names of the turn.

u = blake2b(run_seed, stream, task_id, sample_index, turn, token_index) in [0, 1) with 53 bits; the token is the inverse
CDF at u, in float64. Each row of a batch is independent of the other rows, so batch composition and scheduling cannot
change a result. Not suitable for secrets: by design, anyone who knows the names can repeat the draw.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.base import SamplingParams, SeedKey

MAX_ELEMENTS = 1 << 19
"""Maximum number of logits processed at once: their float64 copy takes 4 MB, which stays in a cache and is not mapped
again for each call (8 rows of 151,936 logits: 3.8 instead of 17 ms). Never changes a result."""
NUCLEUS = 1024
"""Number of top tokens searched first for the top_p mass; sorting all tokens takes 30 times as long. Never changes a
result."""


class Noise:
    """The random numbers of one sampled turn."""

    __slots__ = ("_state",)

    def __init__(self, run_seed: int, key: SeedKey) -> None:
        names = json.dumps([run_seed, *key])  # unambiguous: no two different keys share one spelling
        self._state = hashlib.blake2b(names.encode(), digest_size=8, person=b"agentgrpo.sample")

    def uniform(self, token_index: int) -> float:
        """Return the number in [0, 1) that draws token `token_index` (0-based) of the turn."""
        state = self._state.copy()
        state.update(token_index.to_bytes(8, "little"))
        return (int.from_bytes(state.digest(), "little") >> 11) * 2.0**-53


class Distribution(NamedTuple):
    """The distribution that a row is drawn from. Filters are applied in this order: temperature, top_k, top_p,
    min_p."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(cls, sampling: SamplingParams) -> Distribution:
        return cls(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def sample(
    logits: Tensor, distributions: Sequence[Distribution], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row.

    logits [n, V] of any float dtype; distributions and uniforms have n entries. Returns n tokens and n log-probs, each
    under exactly the distribution that its token was drawn from (renormalised after filtering). Greedy rows
    (temperature 0) take the first maximum and the log-prob of the plain softmax. If a row's logits contain a NaN or
    +inf, its log-prob is not finite.
    """
    tokens, logprobs = [0] * len(distributions), [math.nan] * len(distributions)
    rows_of: dict[Distribution, list[int]] = {}
    for row, distribution in enumerate(distributions):
        rows_of.setdefault(distribution, []).append(row)
    chunk = max(1, MAX_ELEMENTS // logits.shape[-1])
    for distribution, rows in rows_of.items():
        part = logits if len(rows) == len(logits) else logits[rows]
        u = torch.tensor([uniforms[r] for r in rows], dtype=torch.float64, device=logits.device)
        chunks = [slice(i, i + chunk) for i in range(0, len(rows), chunk)]
        drawn = [_draw(part[own], distribution, u[own]) for own in chunks]
        found = (torch.cat(columns).tolist() for columns in zip(*drawn, strict=True))
        for row, token, score in zip(rows, *found, strict=True):
            tokens[row], logprobs[row] = token, score
    return tokens, logprobs


def _draw(logits: Tensor, distribution: Distribution, u: Tensor) -> tuple[Tensor, Tensor]:
    """logits [n, V], u [n] -> tokens [n], log-probs [n]. Sums are running sums, whose bits do not depend on n."""
    greedy, temperature = distribution.temperature == 0, distribution.temperature or 1.0
    x = logits.to(torch.float64, copy=True)
    if temperature != 1:
        x /= temperature
    if not greedy:
        _filter(x, distribution)
    top = x.amax(-1, keepdim=True)
    cdf = x.sub_(top).exp_().cumsum_(-1)
    total = cdf[:, -1:]
    if greedy:
        tokens = logits.argmax(-1, keepdim=True)
    else:  # u <= 1 - 2**-53, hence u * total < total, even after rounding: only NaN needs the clamp
        tokens = torch.searchsorted(cdf, u[:, None] * total, right=True).clamp_(max=x.shape[-1] - 1)
    chosen = logits.gather(-1, tokens).double() / temperature
    return tokens[:, 0], (chosen - top - total.log())[:, 0]


def _filter(x: Tensor, distribution: Distribution) -> None:
    """Set the logits that top_k, top_p or min_p drop to -inf. Ties with the k-th token stay; min_p is a share of the
    largest probability."""
    _, top_k, top_p, min_p = distribution
    if 0 < top_k < x.shape[-1]:
        x.masked_fill_(x < x.topk(top_k).values[:, -1:], -math.inf)
    if top_p < 1:
        _keep_nucleus(x, top_p)
    if min_p > 0:
        x.masked_fill_(x < x.amax(-1, keepdim=True) + math.log(min_p), -math.inf)


def _keep_nucleus(x: Tensor, top_p: float) -> None:
    """Set to -inf all tokens outside the smallest set that reaches the mass; among equal tokens the first stay."""
    top = x.amax(-1, keepdim=True)
    total = (x - top).exp_().cumsum_(-1)[:, -1:]
    size = NUCLEUS
    while True:
        ranked = x.topk(min(size, x.shape[-1])).values
        probs = (ranked - top).exp_() / total
        kept = (probs.cumsum(-1) - probs < top_p).sum(-1, keepdim=True)
        if size >= x.shape[-1] or kept.max() < size:
            break
        size *= 16
    least = ranked.gather(-1, kept.clamp(min=1) - 1)
    room = kept - (ranked > least).sum(-1, keepdim=True)
    equal = x == least
    x.masked_fill_(x < least, -math.inf)
    if (equal.sum(-1, keepdim=True) > room).any():
        x.masked_fill_(equal & (equal.cumsum(-1) > room), -math.inf)


# --- The end of a sampled turn: stop tokens, and stop strings without decoding the whole text again for every token.

PARTIAL = "\ufffd"
"""The character that a decoder writes for an incomplete character."""


class StopRule:
    """Decides after each token whether the turn is over; the token that completes a stop string belongs to the turn."""

    __slots__ = ("_decode", "_final", "_strings", "_suspects", "_tail")

    def __init__(
        self,
        *,
        final: frozenset[int],
        suspects: frozenset[int],
        strings: Sequence[str],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """final: tokens that end a turn by themselves. suspects: tokens that may complete a string of `strings` begun
        in earlier tokens. Text is decoded only after these, and only as many tokens as a stop string can have bytes."""
        self._final, self._suspects, self._strings, self._decode = final, suspects, strings, decode
        self._tail = max((len(s.encode()) for s in strings), default=0) + 4

    def ends(self, tokens: Sequence[int], first: int) -> bool:
        """Return whether the turn's tokens so far, `tokens[first:]`, end it; only the last of them can have ended the
        turn."""
        token = tokens[-1]
        if token in self._final:
            return True
        if token not in self._suspects:
            return False
        text = self._decode(tokens[max(first, len(tokens) - self._tail) :])
        return any(s in text for s in self._strings)


class StopRules:
    """Creates the StopRule of each (stop strings, stop tokens) pair once. `tokenizer` is a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._made: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRule] = {}

    def rule(self, strings: tuple[str, ...], token_ids: tuple[int, ...]) -> StopRule:
        made = self._made.get((strings, token_ids))
        if made is None:
            made = self._made[strings, token_ids] = self._make(tuple(s for s in strings if s), token_ids)
        return made

    def _make(self, strings: tuple[str, ...], token_ids: tuple[int, ...]) -> StopRule:
        final, suspects = set(token_ids), set[int]()
        # A token completes a string begun earlier only if its text starts with a proper suffix of that string. A token
        # that is part of a character, or that has no text by itself, might always complete one.
        suffixes = tuple(s[i:] for s in strings for i in range(1, len(s)))
        for token, text in enumerate(self._texts if strings else ()):
            if any(s in text for s in strings):
                final.add(token)
            elif not text or PARTIAL in text or text.startswith(suffixes):
                suspects.add(token)
        return StopRule(final=frozenset(final), suspects=frozenset(suspects), strings=strings, decode=self._decode)

    @cached_property
    def _texts(self) -> list[str]:
        return [self._decode([i]) for i in range(len(self._tokenizer))]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
