"""Combines several backends by reciprocal rank fusion."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Backend


class FusedBackend:
    """Reciprocal rank fusion (Cormack, Clarke & Büttcher 2009): score(p) = sum over backends of 1 / (k + rank of p),
    with ranks from 1, over each backend's best `depth`. Passages with equal ids are the same passage. Ties go to the
    backend named first, then to its better rank. A row fails if any backend fails on it."""

    def __init__(self, backends: Sequence[Backend], *, k: int = 60, depth: int = 50) -> None:
        if not backends or k < 0 or depth < 1:
            raise ConfigError(
                f"fusion of {len(backends)} backends with k={k}, depth={depth}; "
                "at least one backend, k >= 0 and depth >= 1 are allowed"
            )
        self._backends = tuple(backends)
        self._k = k
        self._depth = depth

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        # One depth for every top_k: the best 2 are the first 2 of the best 5.
        answers = [backend.search_batch(queries, max(self._depth, top_k)) for backend in self._backends]
        return [self._fuse(rows, top_k) for rows in zip(*answers, strict=True)]

    def _fuse(self, rows: Sequence[list[Passage] | RetrieverError], top_k: int) -> list[Passage] | RetrieverError:
        passages: dict[str, Passage] = {}
        scores: dict[str, float] = {}
        for row in rows:
            if isinstance(row, RetrieverError):
                return row
            for rank, passage in enumerate(row, 1):
                passages.setdefault(passage.id, passage)
                scores[passage.id] = scores.get(passage.id, 0.0) + 1.0 / (self._k + rank)
        # Rounded, so that equal sums taken in another order are ties; sorted() keeps ties in order of first appearance.
        best = sorted(passages, key=lambda id: -round(scores[id], 12))[:top_k]
        return [dataclasses.replace(passages[id], score=float(f"{scores[id]:.6g}")) for id in best]
