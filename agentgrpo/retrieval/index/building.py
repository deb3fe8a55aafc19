"""Builds an index: stores a corpus, embeds it block by block, and passes the vectors to a sink.

    add      passages.jsonl, passages.offsets      durable batch by batch
    finish   embedder.json                         the embedder's state, if it is fitted to the corpus
             the sink                              vectors, block by block
             words/                                BM25, if requested
             index.json                            last: it marks the folder as a complete index

Each step is durable before the next begins, and continues where it was interrupted. Memory holds at most a batch of
passages and a block of vectors (FAISS's hnsw and ivf indexes need additional memory).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import numpy as np

from agentgrpo.core.durable import ensure_directory, write_atomic
from agentgrpo.core.errors import ConfigError, DataError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Progress
from agentgrpo.retrieval.corpus import searchable_text
from agentgrpo.retrieval.embedder import Embedder, Fitted, Vectors, identity_of
from agentgrpo.retrieval.index.manifest import Manifest, as_bytes, read_json
from agentgrpo.retrieval.index.passages import PASSAGES, PassageFile, PassageWriter, row_of
from agentgrpo.retrieval.index.words import build_words

INDEX, BEGUN, LEARNT = "index.json", "begun.json", "embedder.json"
BLOCK = 1024
"""Number of passages embedded at once."""


class Sink(Protocol):
    """The destination of the vectors."""

    kind: str
    index: str

    def begin(self, manifest: Manifest) -> int:
        """The number of durably stored passages of the index that `manifest` describes. Raises ConfigError if the place
        holds something else."""
        ...

    def add(self, start: int, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Store passage `start` and those after it; durable on return."""
        ...

    def finish(self, manifest: Manifest, learnt: Mapping[str, Any] | None) -> None: ...

    def forget(self) -> None:
        """Called before `begin` if the stored vectors must be computed again. A sink in a database deletes nothing: its
        `begin` refuses another corpus."""
        ...

    def close(self) -> None:
        """Called after `begin`, also after errors."""
        ...


class Building:
    """An Indexer over a folder. Building a complete index again from the same corpus does nothing, except for restoring
    data that the sink has lost."""

    def __init__(
        self, folder: Path | None, *, embedder: Embedder, sink: Sink, stemmer: str | None, words: bool = False
    ) -> None:
        """folder: None = a temporary one, for a sink that stores everything itself. words: also build a BM25 index, for
        mode fused. Raises ConfigError if the folder holds something else."""
        if folder is None:
            folder = Path(mkdtemp(prefix="agentgrpo-index-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder, self._embedder, self._sink = folder, embedder, sink
        self._stemmer, self._words = stemmer, words
        self._begin()
        self._writer = PassageWriter(self._folder)
        self._ids = array("Q")

    @property
    def count(self) -> int:
        return self._writer.count

    def resume(self, corpus: Iterator[Passage]) -> None:
        for number, row in enumerate(self._writer.rows()):
            passage = next(corpus, None)
            if passage is None or row_of(passage) != row:
                found = "ends there" if passage is None else f"has {passage.id!r} there"
                raise ConfigError(
                    f"{self._folder} was begun with another corpus: its passage {number + 1} is "
                    f"{json.loads(row)['id']!r}, and the corpus {found}; give the corpus as it was, or another --out"
                )
            self._note(passage)

    def add(self, passages: Sequence[Passage]) -> None:
        if (self._folder / INDEX).is_file():
            raise ConfigError(
                f"{self._folder} is an index of {self.count} passages, and the corpus has more; give another --out"
            )
        if passages:
            self._unlearn()
            for passage in passages:
                self._note(passage)
            self._writer.append([row_of(passage) for passage in passages])

    def finish(self, progress: Progress) -> None:
        if not self.count:
            raise DataError(f"{self._folder}: an index of no passages; the corpus is empty")
        self._refuse_duplicates()
        passages = PassageFile.in_folder(self._folder)
        learnt = self._learn(passages, progress)
        manifest = Manifest(
            kind=self._sink.kind,
            index=self._sink.index,
            embedder=identity_of(self._embedder),
            dim=self._embedder.dim,
            count=len(passages),
            fingerprint=_fingerprint(self._folder / PASSAGES),
        )
        try:
            self._fill(manifest, passages, progress)
            if self._words:
                build_words(self._folder, passages, self._stemmer, progress)
            self._sink.finish(manifest, learnt)
        finally:
            self._sink.close()
        write_atomic(self._folder / INDEX, as_bytes(manifest.as_json()))

    def _fill(self, manifest: Manifest, passages: PassageFile, progress: Progress) -> None:
        done = self._sink.begin(manifest)
        while done < len(passages):
            block = passages[done : done + BLOCK]
            self._sink.add(done, block, self._embed(block))
            done += len(block)
            progress("embedded", done, len(passages))

    def _begin(self) -> None:
        settings = {
            "kind": self._sink.kind,
            "index": self._sink.index,
            "embedder": identity_of(self._embedder),
            "mode": "fused" if self._words else "dense",
            **({"stemmer": self._stemmer} if self._words else {}),
        }
        begun = self._folder / BEGUN
        if not begun.is_file():
            if self._folder.is_dir() and any(path.name != "run.lock" for path in self._folder.iterdir()):
                raise ConfigError(f"{self._folder} holds other files and no index; give a new or an empty --out")
            ensure_directory(self._folder)
            write_atomic(begun, as_bytes(settings))
        elif (found := read_json(begun)) != settings:
            [key, *_] = [key for key in {**found, **settings} if found.get(key) != settings.get(key)]
            raise ConfigError(
                f"{self._folder} was begun with {key} {found.get(key)}, not {settings.get(key)}; set it as it was, or "
                "give another --out"
            )

    def _note(self, passage: Passage) -> None:
        digest = hashlib.blake2b(passage.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._ids.append(int.from_bytes(digest, "little"))

    def _refuse_duplicates(self) -> None:
        ids = np.frombuffer(self._ids, np.uint64)
        values, counts = np.unique(ids, return_counts=True)
        if len(values) < len(ids):
            twice = np.flatnonzero(ids == values[counts > 1][0])
            passages = PassageFile.in_folder(self._folder)
            raise DataError(
                f"passages {twice[0] + 1} and {twice[1] + 1} of the corpus have one id, "
                f"{passages[int(twice[0])].id!r}; ids must be unique: correct the corpus and build into another --out"
            )

    def _unlearn(self) -> None:
        """Called before passages are added: the embedder's state from an interrupted build with fewer passages is
        discarded, because it differs from the state for all passages."""
        if (self._folder / LEARNT).is_file():
            self._sink.forget()  # first: without LEARNT, the sink's outdated vectors would go unnoticed
            (self._folder / LEARNT).unlink()

    def _learn(self, passages: PassageFile, progress: Progress) -> Mapping[str, Any] | None:
        if not isinstance(self._embedder, Fitted):
            return None
        path = self._folder / LEARNT
        if path.is_file():
            self._embedder.restore(read_json(path))
        else:
            self._embedder.fit(map(searchable_text, _told(passages, progress)))
            write_atomic(path, json.dumps(self._embedder.state(), ensure_ascii=False).encode())
        return self._embedder.state()

    def _embed(self, passages: Sequence[Passage]) -> Vectors:
        vectors = self._embedder.embed([searchable_text(passage) for passage in passages])
        if vectors.shape != (len(passages), self._embedder.dim) or not np.isfinite(vectors).all():
            raise RetrieverError(
                f"the embedder {identity_of(self._embedder)} gave {list(vectors.shape)} numbers for {len(passages)} "
                f"passages from {passages[0].id!r} on; needed are finite ones, [{len(passages)}, {self._embedder.dim}]"
            )
        return np.ascontiguousarray(vectors, np.float32)


def restore(embedder: Embedder, folder: Path) -> None:
    """Restore the embedder's state from an index folder. Raises ConfigError."""
    if isinstance(embedder, Fitted):
        embedder.restore(read_json(folder / LEARNT))


def _told(passages: Sequence[Passage], progress: Progress) -> Iterator[Passage]:
    for start in range(0, len(passages), BLOCK):
        yield from passages[start : start + BLOCK]
        progress("read", min(start + BLOCK, len(passages)), len(passages))


def _fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
