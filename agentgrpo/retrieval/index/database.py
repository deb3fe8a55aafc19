"""Indexes in a database, with their manifest stored beside them: qdrant, pgvector."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.retrieval.embedder import Embedder, Fitted
from agentgrpo.retrieval.fused import FusedBackend
from agentgrpo.retrieval.index.building import INDEX
from agentgrpo.retrieval.index.manifest import Manifest, Shape, read_json
from agentgrpo.retrieval.index.passages import PassageFile
from agentgrpo.retrieval.index.vectors import VectorBackend, VectorStore
from agentgrpo.retrieval.index.words import open_words
from agentgrpo.retrieval.lazy import Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The builder's record of a collection or table."""

    manifest: Manifest
    done: int
    """Number of stored passages."""
    is_complete: bool
    learnt: bytes | None
    """The compressed embedder state; see `packed`."""

    def require(self, manifest: Manifest, *, where: object, key: str) -> None:
        """Raises ConfigError unless the record belongs to the index with this manifest."""
        if self.manifest != manifest:
            differs = next(f for f in Manifest.__slots__ if getattr(self.manifest, f) != getattr(manifest, f))
            what = (
                "of another corpus"
                if differs in ("fingerprint", "count")
                else f"with {differs} " + repr(getattr(self.manifest, differs))
            )
            state = "an index" if self.is_complete else "a half-built index"
            raise ConfigError(
                f"{where} holds {state} {what}, {self.manifest.count} passages; give another {key}, or delete it"
            )


def opened_record(record: Record | None, *, kind: str, shape: Shape, embedder: Embedder, where: object) -> Manifest:
    """The manifest of a complete index; restores the embedder's state from the record. Raises ConfigError."""
    command = f"agentgrpo index --corpus FILE retriever={kind} ..."
    if record is None:
        raise ConfigError(f"{where} is not there, or was not built by agentgrpo; build it: {command}")
    manifest = record.manifest
    if not record.is_complete:
        raise ConfigError(f"{where} is half-built, {record.done} of {manifest.count} passages; go on with {command}")
    manifest.refuse_others(kind=kind, index=shape.index, embedder=embedder, where=where)
    if isinstance(embedder, Fitted) and record.learnt is not None:
        embedder.restore(json.loads(zlib.decompress(record.learnt)))
    return manifest


def packed(learnt: Mapping[str, Any] | None) -> bytes | None:
    return None if learnt is None else zlib.compress(json.dumps(learnt, ensure_ascii=False).encode())


def opened(
    open_store: Callable[[Embedder], tuple[VectorStore, Manifest]],
    *,
    embedder: Embedder,
    words: str | None,
    stemmer: str | None,
) -> Opened:
    """The backend for the store, fused with the word index of the folder `words` if given. Raises ConfigError."""
    store, manifest = open_store(embedder)
    backend = VectorBackend(store, embedder=embedder)
    if words is None:
        return backend, backend.close
    try:
        folder = Path(words).expanduser()
        if not (folder / INDEX).is_file():
            raise ConfigError(
                f"retriever.words={words} is no finished index folder; build it: agentgrpo index with the same keys"
            )
        if Manifest.of(read_json(folder / INDEX), folder / INDEX).fingerprint != manifest.fingerprint:
            raise ConfigError(f"retriever.words={words} is of another corpus than the vectors; build them together")
        return FusedBackend([backend, open_words(folder, PassageFile.in_folder(folder), stemmer)]), backend.close
    except BaseException:
        backend.close()
        raise
