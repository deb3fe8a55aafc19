"""A table of PostgreSQL that a configuration names, and the connection to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.retrievers.lazy import extra_missing, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    dsn: str | None
    dsn_env: str | None
    table: str
    timeout_s: float

    def __str__(self) -> str:
        return f"the table {self.table} in PostgreSQL"

    @property
    def names(self) -> dict[str, Any]:
        """As parts of statements: the table, its record, its index."""
        from psycopg import sql

        *schema, name = self.table.split(".")
        return {
            "passages": sql.Identifier(*schema, name),
            "about": sql.Identifier(*schema, f"{name}_index"),
            "vectors": sql.Identifier(f"{name}_embedding"),
        }

    def connect(self, *, creates_extension: bool = False) -> Any:
        """A connection, every statement a transaction of its own. creates_extension: where the database has none, as
        its owner may. Raises ConfigError, for no extension too."""
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
            ) from (e if self.dsn_env is None else None)  # whose words may hold the password
        try:
            # not as an option of the connection, which would take the place of the DSN's own options
            connection.execute(f"SET statement_timeout = {round(self.timeout_s * 1000)}")
            if creates_extension:
                there = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
                if there is None:  # IF NOT EXISTS is refused where nothing may be written, even if it exists
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
        """Without anything of the DSN: the library takes a password with / or # in it for a host, a port or a name."""
        if self.dsn_env is None:
            return text
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            parts = {key: str(value) for key, value in conninfo_to_dict(self._conninfo()).items() if value}
        except psycopg.Error as e:
            return type(e).__name__  # whose own words are the DSN
        if password := parts.pop("password", None):
            text = text.replace(password, "***")
        values = {piece for value in parts.values() for piece in (value, *value.split(",")) if piece}
        for value in sorted(values, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "***", text)
        return text


def place_of(dsn: str | None, dsn_env: str | None, table: str, timeout_s: float) -> Place:
    """Raises ConfigError; nothing is connected to."""
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
    place = Place(dsn=dsn, dsn_env=dsn_env, table=table, timeout_s=timeout_s)
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
            f"retriever.dsn is no DSN ({type(e).__name__}); such as postgresql://user@host/database is allowed"
        ) from e
    if has_password:
        raise ConfigError(
            "retriever.dsn holds a password, which would end up in files; put the whole DSN into an environment "
            "variable and give its name: retriever.dsn_env=NAME"
        )
