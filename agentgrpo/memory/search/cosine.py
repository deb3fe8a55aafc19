"""Nearness of meaning as an embedder sees it, alone or together with BM25."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from agentgrpo.errors import ConfigError
from agentgrpo.memory.search.bm25 import Bm25
from agentgrpo.memory.search.layers import Scores
from agentgrpo.retrievers.embedder import Embedder, Vectors, identity_of

FULL_SCORE = 10.0
"""The BM25 score from which on a text counts as found by words."""
_REMEMBERED = 2**14


class Cosine:
    """In [-1, 1]: rows of an embedder have length 1, or 0 for a text that says nothing."""

    def __init__(self, embedder: Embedder) -> None:
        self.identity = f"cosine {identity_of(embedder)}"
        self._embedder = embedder
        self._vector = lru_cache(maxsize=_REMEMBERED)(self._embed)

    def over(self, texts: Sequence[str]) -> Scores:
        vectors = [self._vector(text) for text in texts]

        def scores(query: str) -> list[float]:
            asked = self._vector(query)
            # Plain sums, no BLAS: its result may depend on the number of threads.
            return [float((asked * vector).sum()) for vector in vectors]

        return scores

    def _embed(self, text: str) -> Vectors:
        vector: Vectors = self._embedder.embed([text])[0]
        return vector


class Hybrid:
    """(1 - weight) * min(bm25 / 10, 1) + weight * cosine."""

    def __init__(self, words: Bm25, meaning: Cosine, *, weight: float = 0.5) -> None:
        """Raises ConfigError."""
        if not 0 <= weight <= 1:
            raise ConfigError(f"search.weight={weight}; the cosine's share, from 0 to 1, is allowed")
        self.identity = f"hybrid {weight} of {meaning.identity}, {words.identity}"
        self._words, self._meaning, self._weight = words, meaning, weight

    def over(self, texts: Sequence[str]) -> Scores:
        words, meaning = self._words.over(texts), self._meaning.over(texts)

        def scores(query: str) -> list[float]:
            w = self._weight
            both = zip(words(query), meaning(query), strict=True)
            return [(1 - w) * min(by_words / FULL_SCORE, 1.0) + w * cosine for by_words, cosine in both]

        return scores
