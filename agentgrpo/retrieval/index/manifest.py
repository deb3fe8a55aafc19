"""The description of an index: its passages, its embedder, and its kind of search."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentgrpo.core.errors import ConfigError, did_you_mean, line_of
from agentgrpo.retrieval.embedder import Embedder, identity_of

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    kind: str
    """The retriever that reads it: faiss_index, qdrant, pgvector."""
    index: str
    """flat, exact, hnsw, ivf, ivfflat."""
    embedder: str
    """The builder's embedder, by embedder.identity_of."""
    dim: int
    count: int
    fingerprint: str
    """A digest of the passages, in their order."""
    format: int = FORMAT

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, values: Any, where: object) -> Self:
        """Parse a manifest. Raises ConfigError if it is damaged or of another format."""
        try:
            if values["format"] != FORMAT:
                raise ConfigError(
                    f"{where} is of format {values['format']}; this release reads format {FORMAT}: build it again with "
                    "agentgrpo index"
                )
            return cls(
                kind=str(values["kind"]),
                index=str(values["index"]),
                embedder=str(values["embedder"]),
                dim=int(values["dim"]),
                count=int(values["count"]),
                fingerprint=str(values["fingerprint"]),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"{where} is damaged ({line_of(e)}); build it again: agentgrpo index") from e

    def refuse_others(self, *, kind: str, index: str, embedder: Embedder, where: object) -> None:
        """Raises ConfigError unless the index was built with these settings."""
        if self.kind != kind:
            raise ConfigError(
                f"{where} is an index of retriever={self.kind}, not of {kind}; choose retriever={self.kind}"
            )
        if self.index != index:
            raise ConfigError(f"{where} holds the index {self.index}, not {index}; give retriever.index={self.index}")
        if self.embedder != (given := identity_of(embedder)):
            raise ConfigError(
                f"{where} was built by the embedder {self.embedder}, and retriever.embedder is {given}; set it as it "
                "was, or build the index again"
            )
        if self.dim != embedder.dim:
            raise ConfigError(
                f"{where} holds vectors of {self.dim} numbers, and retriever.embedder gives {embedder.dim}; build the "
                "index again"
            )


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ConfigError."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read: {e}; build the index again: agentgrpo index") from e


def as_bytes(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()


# --- The kind of vector search: exact, or by an index that may miss some vectors.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The kind of index and its parameters. hnsw: a graph (Malkov & Yashunin 2018). ivf: k-means cells; only the
    nearest ones are searched."""

    index: str
    links: int = 32
    """hnsw: links of each vector to others (M)."""
    build_candidates: int = 200
    """hnsw: candidates considered per vector while building (efConstruction)."""
    search_candidates: int = 128
    """hnsw: candidates considered per query (efSearch)."""
    lists: int | None = None
    """ivf: number of cells; None = 4 * sqrt(count)."""
    probes: int = 16
    """ivf: number of cells searched per query."""

    def check(self, allowed: Sequence[str]) -> None:
        """Raises ConfigError for an unknown index or a parameter that is too small."""
        if self.index not in allowed:
            raise ConfigError(
                f"retriever.index={self.index}; allowed are {', '.join(allowed)}.{did_you_mean(self.index, allowed)}"
            )
        for name in ("links", "build_candidates", "search_candidates", "lists", "probes"):
            value = getattr(self, name)
            if value is not None and value < (2 if name == "links" else 1):
                raise ConfigError(f"retriever.{name}={value}; {2 if name == 'links' else 1} or more is allowed")

    def lists_of(self, count: int) -> int:
        """The number of cells, limited so that k-means has the 39 vectors per cell that FAISS recommends."""
        return max(1, min(self.lists or round(4 * math.sqrt(count)), count // 39))
