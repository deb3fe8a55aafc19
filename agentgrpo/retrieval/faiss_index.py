"""`retriever: faiss_index`: an index folder of agentgrpo index, or a published FAISS file with its corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.embedder import Embedder
from agentgrpo.retrieval.fused import FusedBackend
from agentgrpo.retrieval.index.building import BLOCK, INDEX, Building, restore
from agentgrpo.retrieval.index.faiss_file import FILE, FaissSink, FaissStore
from agentgrpo.retrieval.index.manifest import Manifest, Shape, read_json
from agentgrpo.retrieval.index.passages import PassageFile
from agentgrpo.retrieval.index.vectors import VectorBackend
from agentgrpo.retrieval.index.words import open_words
from agentgrpo.retrieval.lazy import LazyRetriever, Opened, identity_with

INDEXES = ("flat", "hnsw", "ivf")
MODES = ("dense", "fused")


def faiss_index(
    *,
    embedder: Embedder,
    path: str | None = None,
    corpus: str | None = None,
    mode: str = "dense",
    stemmer: str | None = "english",
    index: str = "flat",
    links: int = 32,
    build_candidates: int = 200,
    search_candidates: int = 128,
    lists: int | None = None,
    probes: int = 16,
    threads: int = 1,
    cache_size: int = 4096,
    web: Retriever | None = None,
) -> dict[str, Retriever]:
    """The folder `path` as "vdb", searched by meaning (dense), or by meaning and by words, fused by reciprocal rank
    (fused). With `corpus`, `path` is a FAISS file of any kind, and the rows of the JSON lines file `corpus` are its
    positions, as in Search-R1's e5_Flat.index and wiki-18.jsonl. Nothing is opened before the first search or probe.

    index, links, ...: see index.manifest.Shape. threads: FAISS threads for a batch of queries. Raises ConfigError.
    """
    shape = Shape(
        index=index,
        links=links,
        build_candidates=build_candidates,
        search_candidates=search_candidates,
        lists=lists,
        probes=probes,
    )
    shape.check(INDEXES)
    refuse_mode(mode)
    if path is None:
        raise ConfigError(
            "retriever.path has no value; give the folder that agentgrpo index wrote, or a FAISS file with "
            "retriever.corpus=FILE"
        )
    if corpus is not None and mode != "dense":
        raise ConfigError(f"retriever.mode={mode} with retriever.corpus; a published index has no words: mode=dense")
    if corpus is not None:
        open = partial(_published, Path(path).expanduser(), Path(corpus).expanduser(), embedder, shape, threads)
    else:
        words = (stemmer,) if mode == "fused" else None
        open = partial(_folder, Path(path).expanduser(), embedder, shape, threads, words)
    identity = partial(
        identity_with,
        "faiss_index",
        embedder,
        shape,
        index_name=_name(path),
        corpus=None if corpus is None else _name(corpus),
        mode=mode,
        stemmer=stemmer if mode == "fused" else None,
    )
    found: dict[str, Retriever] = {"vdb": LazyRetriever(open, identity=identity, cache_size=cache_size)}
    return found if web is None else {**found, "web": web}


def indexer(
    *,
    out: Path,
    embedder: Embedder,
    mode: str = "dense",
    stemmer: str | None = "english",
    index: str = "flat",
    links: int = 32,
    build_candidates: int = 200,
    lists: int | None = None,
    threads: int = 1,
) -> Building:
    """Builds the folder `out` for `faiss_index`. Raises ConfigError if the folder holds something else."""
    shape = Shape(index=index, links=links, build_candidates=build_candidates, lists=lists)
    shape.check(INDEXES)
    refuse_mode(mode)
    sink = FaissSink(out, shape, block=BLOCK, threads=threads)
    return Building(out, embedder=embedder, sink=sink, stemmer=stemmer, words=mode == "fused")


def _name(path: str) -> str:
    """The name of the file or folder, without its location."""
    return Path(path).expanduser().resolve().name


def refuse_mode(mode: str) -> None:
    """Raises ConfigError for an unknown mode."""
    if mode not in MODES:
        raise ConfigError(f"retriever.mode={mode!r}; allowed are {' and '.join(MODES)}.{did_you_mean(mode, MODES)}")


def _folder(path: Path, embedder: Embedder, shape: Shape, threads: int, words: tuple[str | None] | None) -> Opened:
    if not (path / INDEX).is_file():
        half = "is not finished; go on with the same command" if path.is_dir() else "is not there; build it"
        raise ConfigError(f"the index {path} {half}: agentgrpo index --corpus FILE --out {path}")
    manifest = Manifest.of(read_json(path / INDEX), path / INDEX)
    manifest.refuse_others(kind="faiss_index", index=shape.index, embedder=embedder, where=path)
    restore(embedder, path)
    passages = PassageFile.in_folder(path)
    backend = VectorBackend(FaissStore(path / FILE, passages, shape, threads=threads), embedder=embedder)
    if words is None:
        return backend, backend.close
    return FusedBackend([backend, open_words(path, passages, *words)]), backend.close


def _published(path: Path, corpus: Path, embedder: Embedder, shape: Shape, threads: int) -> Opened:
    store = FaissStore(path, PassageFile.of_file(corpus), shape, threads=threads)
    if store.dim != embedder.dim:
        raise ConfigError(
            f"{path} holds vectors of {store.dim} numbers, and retriever.embedder gives {embedder.dim}; give the "
            "embedder that it was built with"
        )
    backend = VectorBackend(store, embedder=embedder)
    return backend, backend.close
