"""Which rows of a model's output layer stand for a token. Published models have more rows than their tokenizers have
ids (Qwen2.5: 151,936 and 151,665), and the other rows do not stand for any text.

These rows are never drawn and have no probability: engine and trainer use the distribution over the tokens alone. Rows
at the end are cut off at no cost; the logits of rows between tokens are replaced by NEVER. A model without such rows is
computed as if this module did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

NEVER = -1e30
"""A logit with probability 0. A finite value keeps 0 times its logarithm at 0, at any temperature."""


class Vocabulary(NamedTuple):
    rows: int
    """Number of rows of the output layer."""
    size: int
    """Number of rows up to the last one that stands for a token."""
    gaps: tuple[int, ...]
    """Rows below `size` that stand for no token, in order."""
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
        """Ids of the rows without a token."""
        return tuple(chain(self.gaps, range(self.size, self.rows)))

    def within(self, logits: Tensor) -> Tensor:
        """logits [..., rows] -> [..., size], in which gaps cannot be drawn; the same tensor if all rows are tokens."""
        if self.size < self.rows:
            logits = logits[..., : self.size]
        if self.gaps:
            logits = logits.index_fill(-1, torch.tensor(self.gaps, device=logits.device), NEVER)
        return logits


class HasVocabulary(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def get_vocab(self) -> Mapping[str, int]: ...
