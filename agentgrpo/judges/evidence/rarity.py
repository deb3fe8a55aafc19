"""How rare a word is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

SURELY_RARE = 12
"""Letters of a word that counts as fully rare without a corpus."""


class Rarity:
    """Rarity of a word in [0, 1], over the N passages of a corpus:

        ln(N / df) / ln(N)     1 = one passage has the word, 0 = all have it

    Without a corpus, names and numbers have rarity 1, and other words are the rarer, the longer they are (Zipf's law of
    abbreviation).
    """

    def __init__(self, passages: Iterable[Sequence[str]]) -> None:
        """passages: the words of each passage."""
        self._df: Counter[str] = Counter()
        self._count = 0
        for words in passages:
            self._count += 1
            self._df.update(set(words))

    def __call__(self, word: str, *, is_name: bool = False) -> float | None:
        """The rarity of the word; None if no passage has it. is_name: the word is written as a name."""
        if self._count > 1:
            df = self._df[word]
            return math.log(self._count / df) / math.log(self._count) if df else None
        return 1.0 if is_name or not word.isalpha() else min(1.0, len(word) / SURELY_RARE)
