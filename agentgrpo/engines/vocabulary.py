"""Which rows of a model's output layer stand for a token: published models have more rows than their tokenizers have
ids (Qwen2.5: 151,936 and 151,665), and what such a row scores is no text.

The others are never drawn, and their probability is nobody's: engine and trainer take the distribution over the tokens
alone. Rows at the end are cut off, which costs nothing; those between tokens score what no token scores. A model
without such rows is computed as if this were not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

NEVER = -1e30
"""A logit of probability 0. It is finite, so that 0 times its logarithm is 0 too, at any temperature."""


class Vocabulary(NamedTuple):
    rows: int
    """Of the output layer."""
    size: int
    """Rows up to the last one that stands for a token."""
    gaps: tuple[int, ...]
    """Rows before that which stand for none, in order."""
    beyond: tuple[str, ...]
    """Tokens without a row, by id: the model has no embedding for them."""

    @classmethod
    def of(cls, rows: int, tokenizer: HasVocabulary) -> Vocabulary:
        tokens = sorted((i, token) for token, i in tokenizer.get_vocab().items())
        ids = {i for i, _ in tokens if i < rows}
        size = max(ids, default=-1) + 1
        gaps = tuple(i for i in range(size) if i not in ids) if len(ids) < size else ()
        return cls(rows, size, gaps, tuple(token for i, token in tokens if i >= rows))

    @property
    def unused(self) -> tuple[int, ...]:
        """The ids of all rows that stand for no token."""
        return tuple(chain(self.gaps, range(self.size, self.rows)))

    def within(self, logits: Tensor) -> Tensor:
        """logits [..., rows] -> [..., size], in which no gap can be drawn; the very same where all rows are tokens."""
        if self.size < self.rows:
            logits = logits[..., : self.size]
        if self.gaps:
            logits = logits.index_fill(-1, torch.tensor(self.gaps, device=logits.device), NEVER)
        return logits


class HasVocabulary(Protocol):
    """What is needed of a transformers tokenizer."""

    def get_vocab(self) -> Mapping[str, int]: ...
