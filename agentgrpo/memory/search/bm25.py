"""Okapi BM25 (Robertson & Zaragoza 2009) over texts that change all the time.

    score(query, text) = sum over the query's distinct words of idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * n / mean))

with idf = ln(1 + (N - df + 0.5) / (df + 0.5)), n the words of the text and mean their mean over the N texts. Tantivy's
BM25 (retrievers.bm25) rounds lengths and has no k1 and b of one's own, and its index costs more than the search.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from agentgrpo.errors import ConfigError
from agentgrpo.memory.search.layers import Scores

_WORD = re.compile(r"[^\W_]+")
_REMEMBERED = 2**16


class Bm25:
    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        """Raises ConfigError."""
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise ConfigError(f"search.k1={k1}, b={b}; k1 of 0 or more and b from 0 to 1 are allowed")
        self.identity = f"bm25 k1={k1} b={b}"
        self._k1, self._b = k1, b

    def over(self, texts: Sequence[str]) -> Scores:
        counts = [_counts(text) for text in texts]
        lengths = [sum(of.values()) for of in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        norms = [self._k1 * (1 - self._b + self._b * n / mean) for n in lengths]
        postings: dict[str, list[tuple[int, int]]] = {}
        for position, of in enumerate(counts):
            for word, tf in of.items():
                postings.setdefault(word, []).append((position, tf))

        def scores(query: str) -> list[float]:
            found = [0.0] * len(texts)
            # Sorted, because float addition is not associative: the order of the query's words decides nothing.
            for word in sorted(_counts(query)):
                held = postings.get(word, ())
                idf = math.log1p((len(texts) - len(held) + 0.5) / (len(held) + 0.5))
                for position, tf in held:
                    found[position] += idf * tf * (self._k1 + 1) / (tf + norms[position])
            return found

        return scores


@lru_cache(maxsize=_REMEMBERED)
def _counts(text: str) -> Mapping[str, int]:
    return Counter(_WORD.findall(text.lower()))
