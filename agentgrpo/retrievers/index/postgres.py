"""A table of PostgreSQL: how it is reached, filled and searched.

table          position, id, title, text, url, embedding
table_index    what it is an index of, and how many passages are in: a row
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from agentgrpo.errors import ConfigError, RetrieverError
from agentgrpo.retrievers.corpus import well_formed
from agentgrpo.retrievers.embedder import Embedder, Vectors
from agentgrpo.retrievers.index.database import Record, opened_record, packed
from agentgrpo.retrievers.index.manifest import Manifest
from agentgrpo.retrievers.index.postgres_place import Place
from agentgrpo.retrievers.index.shape import Shape
from agentgrpo.retrievers.index.vectors import Candidates
from agentgrpo.retrievers.lazy import one_line
from agentgrpo.types import Passage

_MAX_INDEXED_DIM = 2000
_MAX_EF_SEARCH = 1000
"""Limits of pgvector."""
T = TypeVar("T")


class PgSink:
    """A block and the note that it is in are one transaction."""

    kind = "pgvector"

    def __init__(self, place: Place, shape: Shape) -> None:
        """Raises ConfigError where the database cannot be reached."""
        self.index = shape.index
        self._place, self._shape = place, shape
        place.connect(creates_extension=True).close()
        self._connection: Any = None

    def begin(self, manifest: Manifest) -> int:
        if self._shape.index != "exact" and manifest.dim > _MAX_INDEXED_DIM:
            raise ConfigError(
                f"retriever.index={self._shape.index} with vectors of {manifest.dim} numbers; pgvector indexes up to "
                f"{_MAX_INDEXED_DIM}: use retriever.index=exact"
            )
        self._connection = self._place.connect()
        self._connection.execute("SET statement_timeout = 0")  # an index of millions takes its time
        about = _about(self._connection, self._place)
        if about is not None:
            about.require(manifest, where=self._place, key="retriever.table")
            return about.done
        if self._connection.execute("SELECT to_regclass(%s)", [self._place.names["passages"].as_string()]).fetchone()[
            0
        ]:
            raise ConfigError(f"{self._place} was not built by agentgrpo index; give another retriever.table")
        with self._connection.transaction():
            self._run(
                "CREATE TABLE {passages} (position bigint PRIMARY KEY, id text NOT NULL, title text NOT NULL, "
                f"text text NOT NULL, url text NOT NULL, embedding vector({manifest.dim}) NOT NULL)"
            )
            self._run(
                "CREATE TABLE {about} (manifest jsonb NOT NULL, done bigint NOT NULL, is_complete boolean NOT NULL, "
                "learnt bytea)"
            )
            self._run("INSERT INTO {about} VALUES (%s, 0, false, NULL)", [json.dumps(manifest.as_json())])
        return 0

    def add(self, start: int, passages: Sequence[Passage], vectors: Vectors) -> None:
        from psycopg import sql

        statement = sql.SQL("COPY {passages} FROM STDIN WITH (FORMAT BINARY)").format(**self._place.names)
        with self._connection.transaction():
            with self._connection.cursor().copy(statement) as copy:
                copy.set_types(["int8", "text", "text", "text", "text", "vector"])
                for position, (passage, vector) in enumerate(zip(passages, vectors, strict=True), start):
                    texts = (passage.id, passage.title, passage.text, passage.url)
                    copy.write_row((position, *map(_storable, texts), vector))
            self._run("UPDATE {about} SET done = %s", [start + len(passages)])

    def finish(self, manifest: Manifest, learnt: Mapping[str, Any] | None) -> None:
        with self._connection.transaction():
            if self._shape.index == "hnsw":
                options = f"m = {self._shape.links}, ef_construction = {self._shape.build_candidates}"
                self._create_index("hnsw", options)
            elif self._shape.index == "ivfflat":
                self._create_index("ivfflat", f"lists = {self._shape.lists_of(manifest.count)}")
            self._run("UPDATE {about} SET is_complete = true, learnt = %s", [packed(learnt)])
        self._run("ANALYZE {passages}")

    def forget(self) -> None:
        """See `begin`."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _create_index(self, method: str, options: str) -> None:
        self._run(
            f"CREATE INDEX IF NOT EXISTS {{vectors}} ON {{passages}} USING {method} (embedding vector_ip_ops) "
            f"WITH ({options})"
        )

    def _run(self, statement: str, values: Sequence[Any] = ()) -> None:
        from psycopg import sql

        self._connection.execute(sql.SQL(statement).format(**self._place.names), values or None)


class PgStore:
    """A connection that was lost is opened again once a batch."""

    def __init__(self, place: Place, shape: Shape, embedder: Embedder) -> None:
        """Raises ConfigError where the table is missing, half-built, or built otherwise."""
        self._place, self._shape = place, shape
        self._connection = place.connect()
        try:
            record = _about(self._connection, place)
            self.manifest = opened_record(record, kind="pgvector", shape=shape, embedder=embedder, where=place)
        except BaseException:
            self._connection.close()
            raise

    @property
    def count(self) -> int:
        return self.manifest.count

    def nearest(self, queries: Vectors, n: int) -> list[Candidates]:
        return self._again(lambda connection: self._nearest(connection, queries, n))

    def passages(self, positions: Sequence[int]) -> list[Passage]:
        rows = self._again(lambda connection: self._rows(connection, positions))
        found = {row[0]: Passage(id=row[1], title=row[2], text=row[3], url=row[4]) for row in rows}
        if missing := [position for position in positions if position not in found]:
            raise RetrieverError(f"{self._place} has no row {missing[0]} any more", kind="garbage")
        return [found[position] for position in positions]

    def close(self) -> None:
        self._connection.close()

    def _again(self, ask: Callable[[Any], T]) -> T:
        import psycopg

        try:
            return ask(self._connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as e:
            if not self._connection.closed:
                raise RetrieverError(f"{self._place}: {one_line(e)}", kind="transport") from e
        try:
            self._connection = self._place.connect()
            return ask(self._connection)
        except (ConfigError, psycopg.Error) as e:
            raise RetrieverError(f"{self._place}: {one_line(e)}", kind="transport") from e

    def _nearest(self, connection: Any, queries: Vectors, n: int) -> list[Candidates]:
        from psycopg import sql

        statement = sql.SQL("SELECT position, embedding FROM {passages} ORDER BY embedding <#> %s LIMIT %s").format(
            **self._place.names
        )
        found = []
        with connection.transaction():
            if self._shape.index == "hnsw":
                wanted = min(max(self._shape.search_candidates, n), _MAX_EF_SEARCH)
                connection.execute(f"SET LOCAL hnsw.ef_search = {wanted}")
            elif self._shape.index == "ivfflat":
                connection.execute(f"SET LOCAL ivfflat.probes = {self._shape.probes}")
            for query in queries:
                rows = connection.execute(statement, [query, n], binary=True).fetchall()
                vectors = np.array([_numbers(row[1]) for row in rows], np.float32)
                found.append(Candidates([row[0] for row in rows], vectors.reshape(-1, self.manifest.dim)))
        return found

    def _rows(self, connection: Any, positions: Sequence[int]) -> list[tuple[Any, ...]]:
        from psycopg import sql

        statement = sql.SQL("SELECT position, id, title, text, url FROM {passages} WHERE position = ANY(%s)")
        rows: list[tuple[Any, ...]] = connection.execute(
            statement.format(**self._place.names), [list(positions)]
        ).fetchall()
        return rows


def open_table(place: Place, shape: Shape, embedder: Embedder) -> tuple[PgStore, Manifest]:
    store = PgStore(place, shape, embedder)
    return store, store.manifest


def _about(connection: Any, place: Place) -> Record | None:
    """What its builder has recorded of the table."""
    from psycopg import sql

    names = place.names
    if not _exists(connection, names["about"]):
        return None
    statement = sql.SQL("SELECT manifest, done, is_complete, learnt FROM {about}").format(**names)
    manifest, done, is_complete, learnt = connection.execute(statement).fetchone()
    return Record(manifest=Manifest.of(manifest, place), done=done, is_complete=is_complete, learnt=learnt)


def _exists(connection: Any, name: Any) -> bool:
    return connection.execute("SELECT to_regclass(%s)", [name.as_string()]).fetchone()[0] is not None


def _storable(text: str) -> str:
    """PostgreSQL has no character 0."""
    return well_formed(text).replace("\0", "\ufffd")


def _numbers(vector: Any) -> Any:
    return vector.to_numpy() if hasattr(vector, "to_numpy") else vector
