"""A PostgreSQL table with vectors: connecting, filling and searching.

table          position, id, title, text, url, embedding
table_index    one row: the manifest of the index, and the number of stored passages
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import well_formed
from agentgrpo.retrieval.embedder import Embedder, Vectors
from agentgrpo.retrieval.index.database import Record, opened_record, packed
from agentgrpo.retrieval.index.manifest import Manifest, Shape
from agentgrpo.retrieval.index.vectors import Candidates
from agentgrpo.retrieval.lazy import extra_missing, one_line

# --- A PostgreSQL table named in the configuration, and the connection to it.


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    dsn: str | None
    dsn_env: str | None
    table: str
    timeout_s: float

    def __str__(self) -> str:
        return f"the table {self.table} in PostgreSQL"

    @property
    def names(self) -> dict[str, Any]:
        """SQL identifiers for statements: the table, its record, its index."""
        from psycopg import sql

        *schema, name = self.table.split(".")
        return {
            "passages": sql.Identifier(*schema, name),
            "about": sql.Identifier(*schema, f"{name}_index"),
            "vectors": sql.Identifier(f"{name}_embedding"),
        }

    def connect(self, *, creates_extension: bool = False) -> Any:
        """An autocommit connection. creates_extension: create the extension if the database lacks it, which needs its
        owner's rights. Raises ConfigError, also if the extension is missing."""
        try:
            import psycopg
            from pgvector.psycopg import register_vector
        except ImportError as e:
            raise extra_missing(e, what="retriever=pgvector", extra="postgres") from e
        try:
            timeout = max(1, round(self.timeout_s))
            connection = psycopg.connect(self._conninfo(), autocommit=True, connect_timeout=timeout)
        except psycopg.Error as e:
            raise ConfigError(
                f"{self._key}: PostgreSQL does not answer ({self._hidden(one_line(e))}); start it, or correct the DSN"
            ) from (e if self.dsn_env is None else None)  # the error's text may hold the password
        try:
            # not a connection option, which would replace the DSN's own options
            connection.execute(f"SET statement_timeout = {round(self.timeout_s * 1000)}")
            if creates_extension:
                there = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
                if there is None:  # IF NOT EXISTS is refused on read-only databases, even if it exists
                    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(connection)
        except psycopg.Error as e:
            connection.close()
            raise ConfigError(
                f"{self._key}: the database has no extension vector ({one_line(e)}); install pgvector, and as an owner "
                "of the database: CREATE EXTENSION vector"
            ) from e
        return connection

    @property
    def _key(self) -> str:
        return "retriever.dsn" if self.dsn_env is None else f"retriever.dsn_env={self.dsn_env}"

    def _conninfo(self) -> str:
        if self.dsn_env is None:
            return self.dsn or ""
        if not (found := os.environ.get(self.dsn_env)):
            raise ConfigError(
                f"the environment variable {self.dsn_env} is not set; set it to postgresql://user@host/database"
            )
        return found

    def _hidden(self, text: str) -> str:
        """Remove every part of the DSN: the library may take a password with / or # in it for a host, a port or
        a name."""
        if self.dsn_env is None:
            return text
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            parts = {key: str(value) for key, value in conninfo_to_dict(self._conninfo()).items() if value}
        except psycopg.Error as e:
            return type(e).__name__  # the error's text is the DSN itself
        if password := parts.pop("password", None):
            text = text.replace(password, "***")
        values = {piece for value in parts.values() for piece in (value, *value.split(",")) if piece}
        for value in sorted(values, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "***", text)
        return text


def place_of(dsn: str | None, dsn_env: str | None, table: str, timeout_s: float) -> PostgresPlace:
    """Validate the settings without connecting. Raises ConfigError."""
    if (dsn is None) == (dsn_env is None):
        raise ConfigError(
            "retriever.dsn and retriever.dsn_env; give one of them: postgresql://user@host/database, or the name of "
            "the environment variable that holds it"
        )
    parts = table.split(".")
    if not all(parts) or len(parts) > 2:
        raise ConfigError(f"retriever.table={table!r}; a name, or schema.name, is allowed")
    if not timeout_s > 0:
        raise ConfigError(f"retriever.timeout_s={timeout_s}; more than 0 is allowed")
    place = PostgresPlace(dsn=dsn, dsn_env=dsn_env, table=table, timeout_s=timeout_s)
    if dsn is not None:
        _refuse_password(dsn)
    return place


def _refuse_password(dsn: str) -> None:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as e:
        raise extra_missing(e, what="retriever=pgvector", extra="postgres") from e
    try:
        has_password = bool(conninfo_to_dict(dsn).get("password"))
    except psycopg.Error as e:
        raise ConfigError(
            f"retriever.dsn is no DSN ({type(e).__name__}); give one such as postgresql://user@host/database"
        ) from e
    if has_password:
        raise ConfigError(
            "retriever.dsn holds a password, which would end up in files; put the whole DSN into an environment "
            "variable and give its name: retriever.dsn_env=NAME"
        )


_MAX_INDEXED_DIM = 2000
_MAX_EF_SEARCH = 1000
"""Limits of pgvector."""
T = TypeVar("T")


class PgSink:
    """Stores each block and the number of stored passages in one transaction."""

    kind = "pgvector"

    def __init__(self, place: PostgresPlace, shape: Shape) -> None:
        """Raises ConfigError if the database cannot be reached."""
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
        self._connection.execute("SET statement_timeout = 0")  # indexing millions takes long
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
        """Do nothing: `begin` refuses another corpus."""

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
    """Reopens a lost connection once per batch."""

    def __init__(self, place: PostgresPlace, shape: Shape, embedder: Embedder) -> None:
        """Raises ConfigError if the table is missing or incomplete, or was built with other settings."""
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


def open_table(place: PostgresPlace, shape: Shape, embedder: Embedder) -> tuple[PgStore, Manifest]:
    store = PgStore(place, shape, embedder)
    return store, store.manifest


def _about(connection: Any, place: PostgresPlace) -> Record | None:
    """The builder's record of the table, or None."""
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
    """Replace NUL characters, which PostgreSQL cannot store."""
    return well_formed(text).replace("\0", "\ufffd")


def _numbers(vector: Any) -> Any:
    return vector.to_numpy() if hasattr(vector, "to_numpy") else vector
