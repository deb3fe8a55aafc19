"""`retriever: pgvector`: a table of PostgreSQL with the extension pgvector."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.embedder import Embedder
from agentgrpo.retrieval.index.building import Building
from agentgrpo.retrieval.index.database import opened
from agentgrpo.retrieval.index.manifest import Shape
from agentgrpo.retrieval.index.postgres import PgSink, open_table, place_of
from agentgrpo.retrieval.lazy import LazyRetriever, identity_with

INDEXES = ("exact", "hnsw", "ivfflat")


def pgvector(
    *,
    embedder: Embedder,
    dsn: str | None = None,
    dsn_env: str | None = None,
    table: str = "passages",
    words: str | None = None,
    stemmer: str | None = "english",
    index: str = "exact",
    links: int = 16,
    build_candidates: int = 64,
    search_candidates: int = 100,
    lists: int | None = None,
    probes: int = 16,
    timeout_s: float = 10.0,
    cache_size: int = 4096,
    web: Retriever | None = None,
) -> dict[str, Retriever]:
    """The table, "name" or "schema.name", which agentgrpo index filled, as "vdb". The database is `dsn`, without a
    password, or the DSN in the environment variable `dsn_env`. Nothing is opened before the first search or probe.

    words: the folder that agentgrpo index kept (its --out) if the index was built with this key; search by meaning and
    by words is then fused by reciprocal rank. index, links, ...: see index.manifest.Shape. Raises ConfigError.
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
    place = place_of(dsn, dsn_env, table, timeout_s)
    open = partial(opened, partial(open_table, place, shape), embedder=embedder, words=words, stemmer=stemmer)
    by_words = {"words": words is not None, "stemmer": stemmer if words is not None else None}
    identity = partial(identity_with, "pgvector", embedder, shape, table=table, **by_words)
    found: dict[str, Retriever] = {"vdb": LazyRetriever(open, identity=identity, cache_size=cache_size)}
    return found if web is None else {**found, "web": web}


def indexer(
    *,
    out: Path | None,
    embedder: Embedder,
    dsn: str | None = None,
    dsn_env: str | None = None,
    table: str = "passages",
    words: str | None = None,
    stemmer: str | None = "english",
    index: str = "exact",
    links: int = 16,
    build_candidates: int = 64,
    lists: int | None = None,
    timeout_s: float = 10.0,
) -> Building:
    """Fills the table. The other files of the build are kept in `words`, or else in `out`, or else not at all. Raises
    ConfigError."""
    shape = Shape(index=index, links=links, build_candidates=build_candidates, lists=lists)
    shape.check(INDEXES)
    sink = PgSink(place_of(dsn, dsn_env, table, timeout_s), shape)
    folder = out if words is None else Path(words).expanduser()
    return Building(folder, embedder=embedder, sink=sink, stemmer=stemmer, words=words is not None)
