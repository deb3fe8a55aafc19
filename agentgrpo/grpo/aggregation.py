"""Aggregations: the weight of each loss token.

The weights contain every denominator of the loss. They are computed from the loss-token counts of all samples of an
optimizer step, before the first backward pass. So neither packing, nor the split into micro-batches or processes, nor
skipping zero-advantage samples can change the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

Aggregation = Callable[[Sequence[int], Sequence[str], int | None], list[float]]
"""(loss tokens of each sample, all > 0; group of each sample; max_sampled_tokens) -> weight of each sample's tokens."""


def token_mean(
    num_tokens: Sequence[int], groups: Sequence[str] = (), max_sampled_tokens: int | None = None
) -> list[float]:
    """1 / (loss tokens of all samples)."""
    total = sum(num_tokens)
    return [1 / total for _ in num_tokens]


def sequence_mean(
    num_tokens: Sequence[int], groups: Sequence[str] = (), max_sampled_tokens: int | None = None
) -> list[float]:
    """1 / (samples * loss tokens of the sample)."""
    return [1 / (len(num_tokens) * n) for n in num_tokens]


def prompt_mean(num_tokens: Sequence[int], groups: Sequence[str], max_sampled_tokens: int | None = None) -> list[float]:
    """1 / (groups * loss tokens of the sample's group): equal weight for the tokens of a group, and for the groups."""
    of_group: Counter[str] = Counter()
    for group, n in zip(groups, num_tokens, strict=True):
        of_group[group] += n
    return [1 / (len(of_group) * of_group[group]) for group in groups]


def constant(
    num_tokens: Sequence[int], groups: Sequence[str] = (), max_sampled_tokens: int | None = None
) -> list[float]:
    """1 / (samples * max_sampled_tokens): a sample's weight does not depend on its length."""
    if not max_sampled_tokens:
        raise ValueError("the constant aggregation needs max_sampled_tokens >= 1")
    return [1 / (len(num_tokens) * max_sampled_tokens) for _ in num_tokens]


def sequence_sum(
    num_tokens: Sequence[int], groups: Sequence[str] = (), max_sampled_tokens: int | None = None
) -> list[float]:
    """1 / samples: the loss of a sample is the sum over its tokens."""
    return [1 / len(num_tokens) for _ in num_tokens]


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "prompt_mean": prompt_mean,
    "constant": constant,
    "sequence_sum": sequence_sum,
}
