"""Vector search, independent of the store.

FAISS, PostgreSQL and Qdrant sum inner products in different orders, and so differ in the last bits. Their candidates
are therefore scored again here in float64: exact search ranks equally on every store, and a row does not depend on the
other queries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import best_positions
from agentgrpo.retrieval.embedder import Embedder, Vectors, query_vectors

NOISE = 4e-6
"""Larger than the difference between two summation orders of float32 products of unit vectors."""


class Candidates(NamedTuple):
    positions: Sequence[int]
    vectors: Vectors
    """[len(positions), dim]"""


class VectorStore(Protocol):
    @property
    def count(self) -> int: ...

    def nearest(self, queries: Vectors, n: int) -> list[Candidates]:
        """The n vectors with the largest inner product for each row of `queries`, in any order; an approximate index
        may return fewer."""
        ...

    def passages(self, positions: Sequence[int]) -> list[Passage]: ...

    def close(self) -> None: ...


class VectorBackend:
    """The passages whose vectors have the largest inner product with the query's; only products above 0 count as
    matches."""

    def __init__(self, store: VectorStore, *, embedder: Embedder) -> None:
        self._store, self._embedder = store, embedder

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        vectors = query_vectors(self._embedder, queries)
        first = top_k + 8
        candidates = self._store.nearest(vectors, min(first, self._store.count))
        ranked = [
            best_positions(self._store.count, self._nearest(vector[None], found), top_k, margin=NOISE)
            for vector, found in zip(vectors, candidates, strict=True)
        ]
        wanted = sorted({position for row in ranked for _, position in row})
        passages = dict(zip(wanted, self._store.passages(wanted), strict=True)) if wanted else {}
        return [[dataclasses.replace(passages[position], score=score) for score, position in row] for row in ranked]

    def close(self) -> None:
        self._store.close()

    def _nearest(self, query: Vectors, first: Candidates) -> Callable[[int], tuple[list[float], list[int]]]:
        asked = len(first.positions)

        def nearest(n: int) -> tuple[list[float], list[int]]:
            # the batch's candidates, unless more are wanted
            found = first if n <= max(asked, 1) else self._store.nearest(query, n)[0]
            scores = inner_products(found.vectors, query[0])
            matches = [(s, p) for s, p in zip(scores, found.positions, strict=True) if s > 0]
            return [s for s, _ in matches], [p for _, p in matches]

        return nearest


def inner_products(vectors: Vectors, query: Vectors) -> list[float]:
    """Inner products as plain float64 sums. BLAS is avoided, because its results may depend on the machine and the
    number of rows."""
    products: list[float] = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1).tolist()
    return products
