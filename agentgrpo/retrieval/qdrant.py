"""`retriever: qdrant`: a Qdrant collection, in a folder without a server, on a server, or in a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.embedder import Embedder
from agentgrpo.retrieval.index.building import Building
from agentgrpo.retrieval.index.collection import QdrantSink, open_collection, place_of
from agentgrpo.retrieval.index.database import opened
from agentgrpo.retrieval.index.manifest import Shape
from agentgrpo.retrieval.lazy import LazyRetriever, identity_with

INDEXES = ("exact", "hnsw")


def qdrant(
    *,
    embedder: Embedder,
    path: str | None = None,
    url: str | None = None,
    api_key_env: str | None = None,
    collection: str = "passages",
    words: str | None = None,
    stemmer: str | None = "english",
    index: str = "exact",
    links: int = 32,
    build_candidates: int = 200,
    search_candidates: int = 128,
    timeout_s: float = 10.0,
    cache_size: int = 4096,
    web: Retriever | None = None,
) -> dict[str, Retriever]:
    """The collection, which agentgrpo index built, as "vdb". Either `path`, a folder that only one process can open and
    that is always searched exactly, or `url`, a server or a cluster, with its key in the environment variable
    `api_key_env`. Nothing is opened before the first search or probe.

    words: the folder that agentgrpo index kept (its --out) if the index was built with this key; search by meaning and
    by words is then fused by reciprocal rank. index, links, ...: see index.manifest.Shape. Raises ConfigError.
    """
    shape = Shape(index=index, links=links, build_candidates=build_candidates, search_candidates=search_candidates)
    shape.check(INDEXES)
    place = place_of(path, url, api_key_env, timeout_s, collection)
    open = partial(opened, partial(open_collection, place, shape), embedder=embedder, words=words, stemmer=stemmer)
    by_words = {"words": words is not None, "stemmer": stemmer if words is not None else None}
    identity = partial(identity_with, "qdrant", embedder, shape, collection=collection, **by_words)
    found: dict[str, Retriever] = {"vdb": LazyRetriever(open, identity=identity, cache_size=cache_size)}
    return found if web is None else {**found, "web": web}


def indexer(
    *,
    out: Path | None,
    embedder: Embedder,
    path: str | None = None,
    url: str | None = None,
    api_key_env: str | None = None,
    collection: str = "passages",
    words: str | None = None,
    stemmer: str | None = "english",
    index: str = "exact",
    links: int = 32,
    build_candidates: int = 200,
    timeout_s: float = 10.0,
) -> Building:
    """Fills the collection. The other files of the build are kept in `words`, or else in `out`, or else not at all.
    Raises ConfigError."""
    shape = Shape(index=index, links=links, build_candidates=build_candidates)
    shape.check(INDEXES)
    sink = QdrantSink(place_of(path, url, api_key_env, timeout_s, collection), shape)
    folder = out if words is None else Path(words).expanduser()
    return Building(folder, embedder=embedder, sink=sink, stemmer=stemmer, words=words is not None)
