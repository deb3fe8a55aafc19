"""Counter-based sampling: the drawn token is a pure function of its logits, the run's seed and a few names.

u = blake2b(run_seed, stream, task_id, sample_index, turn, token_index) in [0, 1) with 53 bits; the token is the
inverse CDF at u, in float64. No row of a batch looks at another row, so that batch composition and scheduling cannot
change a result. Not for secrets: whoever knows the names can repeat the draw, and that is the point.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentgrpo.engines.base import SamplingParams, SeedKey

MAX_ELEMENTS = 1 << 22
"""Logits worked on at once: bounds the float64 copies to some 100 MB in any vocabulary. Never changes a result."""


class Noise:
    """The random numbers of one sampled turn."""

    __slots__ = ("_state",)

    def __init__(self, run_seed: int, key: SeedKey) -> None:
        names = json.dumps([run_seed, *key])  # unambiguous: no two different keys share one spelling
        self._state = hashlib.blake2b(names.encode(), digest_size=8, person=b"agentgrpo.sample")

    def uniform(self, token_index: int) -> float:
        """The number in [0, 1) that draws token `token_index` (0-based) of the turn."""
        state = self._state.copy()
        state.update(token_index.to_bytes(8, "little"))
        return (int.from_bytes(state.digest(), "little") >> 11) * 2.0**-53


class Distribution(NamedTuple):
    """Which distribution a row is drawn from. Applied in this order: temperature, top_k, top_p, min_p."""

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
    under the very distribution its token was drawn from (renormalised after filtering); greedy rows (temperature 0)
    take the first maximum and the log-prob of the plain softmax. Where a row's logits hold a NaN or +inf, its log-prob
    is not finite.
    """
    tokens, logprobs = [0] * len(distributions), [math.nan] * len(distributions)
    rows_of: dict[Distribution, list[int]] = {}
    for row, distribution in enumerate(distributions):
        rows_of.setdefault(distribution, []).append(row)
    chunk = max(1, MAX_ELEMENTS // logits.shape[-1])
    for distribution, all_rows in rows_of.items():
        for i in range(0, len(all_rows), chunk):
            rows = all_rows[i : i + chunk]
            part = logits if len(rows) == len(logits) else logits[torch.tensor(rows, device=logits.device)]
            u = torch.tensor([uniforms[r] for r in rows], dtype=torch.float64, device=logits.device)
            drawn, scores = _draw(part.double(), distribution, u)
            for row, token, score in zip(rows, drawn.tolist(), scores.tolist(), strict=True):
                tokens[row], logprobs[row] = token, score
    return tokens, logprobs


def _draw(x: Tensor, distribution: Distribution, u: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, V] float64 logits, u [n] -> tokens [n], log-probs [n]."""
    if distribution.temperature == 0:
        tokens = x.argmax(-1)
        return tokens, _at(x, tokens) - x.logsumexp(-1)
    if distribution.temperature != 1:
        x = x / distribution.temperature
    x = _filter(x, distribution)
    top = x.amax(-1, keepdim=True)
    cdf = (x - top).exp_().cumsum(-1)
    total = cdf[:, -1]
    # u <= 1 - 2**-53, hence u * total < total after rounding too: only NaN finds no place and is clamped
    tokens = torch.searchsorted(cdf, (u * total)[:, None], right=True)[:, 0].clamp_(max=x.shape[-1] - 1)
    return tokens, _at(x, tokens) - top[:, 0] - total.log()


def _filter(x: Tensor, distribution: Distribution) -> Tensor:
    """-inf where top_k (ties of the k-th stay), top_p (the smallest set that reaches the mass) or min_p (a share of
    the largest probability) drop a token."""
    _, top_k, top_p, min_p = distribution
    if 0 < top_k < x.shape[-1]:
        x = x.masked_fill(x < x.topk(top_k).values[:, -1:], -math.inf)
    if top_p < 1:
        ranked, order = x.sort(descending=True, stable=True)
        probs = ranked.softmax(-1)
        drop = probs.cumsum(-1) - probs >= top_p
        x = x.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), -math.inf)
    if min_p > 0:
        x = x.masked_fill(x < x.amax(-1, keepdim=True) + math.log(min_p), -math.inf)
    return x


def _at(x: Tensor, tokens: Tensor) -> Tensor:
    return x.gather(-1, tokens[:, None])[:, 0]
