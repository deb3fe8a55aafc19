"""How vectors are searched: exactly, or by an index that may miss some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """hnsw: a graph (Malkov & Yashunin 2018). ivf: cells of k-means, of which the nearest are searched."""

    index: str
    links: int = 32
    """hnsw: of a vector to others (M)."""
    build_candidates: int = 200
    """hnsw: looked at for each vector while building (efConstruction)."""
    search_candidates: int = 128
    """hnsw: looked at for each query (efSearch)."""
    lists: int | None = None
    """ivf: cells; None = 4 * sqrt(count)."""
    probes: int = 16
    """ivf: cells searched for each query."""

    def check(self, allowed: Sequence[str]) -> None:
        """Raises ConfigError."""
        if self.index not in allowed:
            raise ConfigError(
                f"retriever.index={self.index}; allowed are {', '.join(allowed)}.{did_you_mean(self.index, allowed)}"
            )
        for name in ("links", "build_candidates", "search_candidates", "lists", "probes"):
            value = getattr(self, name)
            if value is not None and value < (2 if name == "links" else 1):
                raise ConfigError(f"retriever.{name}={value}; {2 if name == 'links' else 1} or more is allowed")

    def lists_of(self, count: int) -> int:
        """At most so many that k-means has the 39 vectors a cell that FAISS wants to see."""
        return max(1, min(self.lists or round(4 * math.sqrt(count)), count // 39))
