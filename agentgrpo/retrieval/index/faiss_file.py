"""Vectors in a FAISS file: appended while the index is built, memory-mapped for searching.

A flat index is a header followed by the vectors, so it can be written as it grows, whatever its size:

    "IxFI"  dim i32  count i64  (2^20) i64  (2^20) i64  is_trained u8  metric i32  count * dim u64  vectors f32
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from agentgrpo.core.durable import storage_error
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.embedder import Vectors
from agentgrpo.retrieval.index.manifest import Manifest, Shape
from agentgrpo.retrieval.index.vectors import Candidates

FILE = "faiss.index"
_PART = "vectors.part"
_HEADER = struct.Struct("<4siqqqBiQ")
_AT_ONCE = 64
"""Queries that FAISS compares with all vectors in one pass."""
_AS_ONE_PRODUCT = 8192
"""From this many queries times dimension on, FAISS compares them by one matrix product. FAISS's default of 128,000 is
never reached here; with this value, 64 queries of dimension 256 take a seventh of the time. Single queries stay below
it, so their bits do not change."""
_TRAINED_ON = 256
"""Maximum vectors per cell that k-means uses (FAISS's own limit)."""
_BLOCK = 65536


def _header(dim: int, count: int) -> bytes:
    return _HEADER.pack(b"IxFI", dim, count, 1 << 20, 1 << 20, 1, faiss.METRIC_INNER_PRODUCT, count * dim)


class FaissSink:
    """Appends vectors to vectors.part, which becomes the flat index or the source of the other index kinds."""

    kind = "faiss_index"

    def __init__(self, folder: Path, shape: Shape, *, block: int, threads: int = 1) -> None:
        """block: passages added per call."""
        self.index = shape.index
        self._block = block
        self._folder, self._shape, self._threads = folder, shape, threads
        self._part = folder / _PART

    def begin(self, manifest: Manifest) -> int:
        target = self._folder / FILE
        if target.is_file():
            if faiss.read_index(str(target), faiss.IO_FLAG_MMAP_IFC).ntotal == manifest.count:
                return manifest.count
            target.unlink()  # the build was killed before index.json, and the corpus has grown since
        row = 4 * manifest.dim
        if not self._part.is_file() or self._part.stat().st_size < _HEADER.size:
            self._part.write_bytes(_header(manifest.dim, 0))
        done = (self._part.stat().st_size - _HEADER.size) // row
        if done != manifest.count:
            done -= done % self._block  # vectors of a block have the same bits only if they are computed together
        os.truncate(self._part, _HEADER.size + done * row)
        return int(done)

    def add(self, start: int, passages: Sequence[Passage], vectors: Vectors) -> None:
        try:
            with self._part.open("ab") as file:
                file.write(vectors.tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            raise storage_error(self._part, vectors.nbytes, e) from e

    def finish(self, manifest: Manifest, learnt: Mapping[str, Any] | None) -> None:
        target = self._folder / FILE
        if target.is_file():
            return
        if self._shape.index != "flat":
            built = self._approximate(manifest)
            temporary = self._folder / f"{FILE}.part"
            faiss.write_index(built, str(temporary))
            _sync(temporary)
            temporary.replace(target)
            self._part.unlink()
            return
        with self._part.open("r+b") as file:
            file.write(_header(manifest.dim, manifest.count))
        _sync(self._part)
        self._part.replace(target)

    def forget(self) -> None:
        self._part.unlink(missing_ok=True)
        (self._folder / FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """No files stay open between calls."""

    def _approximate(self, manifest: Manifest) -> Any:
        """Build an hnsw or ivf index, which FAISS keeps in memory."""
        vectors = np.memmap(self._part, np.float32, mode="r", offset=_HEADER.size, shape=(manifest.count, manifest.dim))
        faiss.omp_set_num_threads(self._threads)
        index: Any
        if self._shape.index == "hnsw":
            index = faiss.IndexHNSWFlat(manifest.dim, self._shape.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = self._shape.build_candidates
        else:
            lists = self._shape.lists_of(manifest.count)
            cells = faiss.IndexFlatIP(manifest.dim)
            index = faiss.IndexIVFFlat(cells, manifest.dim, lists, faiss.METRIC_INNER_PRODUCT)
            step = max(1, manifest.count // (lists * _TRAINED_ON))
            index.train(np.ascontiguousarray(vectors[::step]))
        for start in range(0, manifest.count, _BLOCK):
            index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
        return index


class FaissStore:
    """Any FAISS inner-product index that can return its vectors, such as flat, hnsw and ivf."""

    def __init__(self, path: Path, passages: Sequence[Passage], shape: Shape, *, threads: int = 1) -> None:
        """threads: FAISS threads, which spin while waiting. Raises ConfigError if the file is not such an index, or
        does not match its corpus."""
        if not path.is_file():
            raise ConfigError(f"{path} is not a file; build it with agentgrpo index, or give the path of a FAISS index")
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as e:
            raise ConfigError(f"{path} is no FAISS index ({str(e).splitlines()[0][:200]}); build it again") from e
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ConfigError(f"{path} compares by distance; an index by inner product (IndexFlatIP, ...) is needed")
        if index.ntotal != len(passages):
            raise ConfigError(
                f"{path} holds {index.ntotal} vectors, and its corpus {len(passages)} passages; give the corpus that "
                "it was built from"
            )
        self.dim = int(index.d)
        faiss.cvar.distance_compute_blas_threshold = max(_AS_ONE_PRODUCT, self.dim + 1)
        self._index, self._passages, self._shape, self._threads = index, passages, shape, threads
        if hasattr(index, "nprobe"):
            index.nprobe = shape.probes

    @property
    def count(self) -> int:
        return int(self._index.ntotal)

    def nearest(self, queries: Vectors, n: int) -> list[Candidates]:
        faiss.omp_set_num_threads(self._threads)  # the setting is per thread
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = max(self._shape.search_candidates, n)
        found: list[Candidates] = []
        for start in range(0, len(queries), _AT_ONCE):
            _, positions, vectors = self._index.search_and_reconstruct(queries[start : start + _AT_ONCE], n)
            for row, given in zip(positions, vectors, strict=True):
                there = row >= 0
                found.append(Candidates(row[there].tolist(), given[there]))
        return found

    def passages(self, positions: Sequence[int]) -> list[Passage]:
        return [self._passages[position] for position in positions]

    def close(self) -> None:
        """The memory is freed with the object."""


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
