"""The embedder interface, and an embedder without a model: words and their character n-grams, hashed to random
directions."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from agentgrpo.core.errors import ConfigError

Vectors = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+")
_CACHED_WORDS = 20_000


class Embedder(Protocol):
    dim: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), dim] with rows of length 1, or 0 for a text without content. No row depends on the other
        texts."""
        ...


@runtime_checkable
class AsksOtherwise(Protocol):
    """An embedder that treats queries and passages differently, such as E5 with its prefixes "query: " and
    "passage: "."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Like Embedder.embed, for queries."""
        ...


@runtime_checkable
class Fitted(Protocol):
    """An embedder that is fitted to a corpus first; its state is stored with the index of that corpus."""

    def fit(self, texts: Iterable[str]) -> None: ...

    def state(self) -> dict[str, Any]:
        """The fitted state as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


def query_vectors(embedder: Embedder, queries: Sequence[str]) -> Vectors:
    return embedder.embed_queries(queries) if isinstance(embedder, AsksOtherwise) else embedder.embed(queries)


def identity_of(embedder: Embedder) -> str:
    """Identifies the embedder: an index must be searched with the embedder that built it."""
    return str(getattr(embedder, "identity", f"{type(embedder).__name__} dim={embedder.dim}"))


class HashingEmbedder:
    """Every feature of a word (the word itself and its n-grams of 3 and 4 characters, with "<" and ">" marking its
    ends) is a random direction: `dim` signs from a hash of its spelling. Such a random projection (Achlioptas 2003)
    needs no vocabulary and is the same everywhere. Words with a common stem therefore have similar directions, and
    texts without a common n-gram are orthogonal up to 1/sqrt(dim).

    A text is the sum of its words, each weighted sqrt(count * idf), scaled to length 1. The square root makes a shared
    word count idf once in the inner product of two texts, as in BM25; with idf on both sides a rare name would outweigh
    the rest of the query. idf = ln(1 + (N - df + 0.5) / (df + 0.5)) over the N `texts`; without texts it is 1.
    """

    WORD_SHARE = 0.35
    """The whole word's share of a word's squared length: large enough to distinguish names, small enough to keep
    "founder" and "founded" close."""

    def __init__(self, *, dim: int = 512, texts: Iterable[str] = ()) -> None:
        if dim < 8 or dim % 8:
            raise ConfigError(f"dim={dim}; use a multiple of 8, for example 512")
        self.dim = dim
        self.identity = f"hashing dim={dim}"
        self._num_texts = 0
        self._df: Counter[str] = Counter()
        self.fit(texts)
        self._word = lru_cache(maxsize=_CACHED_WORDS)(self._embed_word)

    def fit(self, texts: Iterable[str]) -> None:
        """Compute idf over `texts`, replacing earlier counts."""
        self._num_texts, self._df = 0, Counter()
        for text in texts:
            self._num_texts += 1
            self._df.update(set(_words(text)))

    def state(self) -> dict[str, Any]:
        return {"num_texts": self._num_texts, "df": dict(sorted(self._df.items()))}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_texts, self._df = int(state["num_texts"]), Counter(state["df"])

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            vectors[row] = self._embed_text(text)
        return vectors

    def _embed_text(self, text: str) -> Vectors:
        counts = Counter(_words(text))
        if not counts:
            return np.zeros(self.dim, np.float32)
        weights = np.array([math.sqrt(n * self._idf(word)) for word, n in counts.items()], np.float32)
        # Plain sums instead of BLAS, whose result may depend on the number of threads.
        vector: Vectors = (weights[:, None] * np.stack([self._word(word) for word in counts])).sum(axis=0)
        length = np.sqrt(np.square(vector).sum())
        if length > 0:
            vector /= length
        return vector

    def _idf(self, word: str) -> float:
        df = self._df[word]
        return math.log1p((self._num_texts - df + 0.5) / (df + 0.5)) if self._num_texts else 1.0

    def _embed_word(self, word: str) -> Vectors:
        marked = f"<{word}>"
        grams = [marked[i : i + n] for n in (3, 4) for i in range(len(marked) - n + 1)]
        signs = self._directions([f"word {word}", *(f"gram {gram}" for gram in grams)])
        of_word, of_gram = math.sqrt(self.WORD_SHARE), math.sqrt((1 - self.WORD_SHARE) / len(grams))
        vector: Vectors = (of_word * signs[0] + of_gram * signs[1:].sum(axis=0)).astype(np.float32)
        return vector

    def _directions(self, features: Sequence[str]) -> npt.NDArray[np.int8]:
        """Signs [len(features), dim] of -1 and +1."""
        hashed = b"".join(hashlib.shake_128(feature.encode()).digest(self.dim // 8) for feature in features)
        bits = np.unpackbits(np.frombuffer(hashed, np.uint8)).reshape(len(features), self.dim)
        return 2 * bits.astype(np.int8) - 1


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
