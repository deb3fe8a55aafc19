"""Search by meaning, as an embedder represents it: exact inner products in a FAISS flat index."""

from __future__ import annotations

from collections.abc import Sequence

import faiss

from agentgrpo.core.errors import DataError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import best_passages, searchable_text
from agentgrpo.retrieval.embedder import Embedder, Vectors


class DenseBackend:
    """The passages whose vectors have the largest inner product with the query's; only products above 0 count as
    matches."""

    def __init__(self, passages: Sequence[Passage], *, embedder: Embedder) -> None:
        if not passages:
            raise DataError("a dense index of no passages; give at least one")
        self._passages = tuple(passages)
        self._embedder = embedder
        self._index = faiss.IndexFlatIP(embedder.dim)
        self._index.add(embedder.embed([searchable_text(p) for p in self._passages]))

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        # FAISS threads spin while waiting; one suffices for a memory scan. The setting is per thread.
        faiss.omp_set_num_threads(1)
        vectors = self._embedder.embed(queries)
        # One query a call: FAISS picks its kernel by the number of queries, and kernels differ in the last bits.
        return [self._search(vectors[i : i + 1], top_k) for i in range(len(queries))]

    def _search(self, vector: Vectors, top_k: int) -> list[Passage]:
        def nearest(n: int) -> tuple[list[float], list[int]]:
            [scores], [positions] = self._index.search(vector, n)
            matches = scores > 0
            return scores[matches].tolist(), positions[matches].tolist()

        return best_passages(self._passages, nearest, top_k)
