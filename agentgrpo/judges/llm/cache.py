"""What was paid for, such as verdicts, in one SQLite file that any number of processes share."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from agentgrpo.errors import StorageError
from agentgrpo.judges.llm.verdict import Opinion

T = TypeVar("T")
_BUSY_S = 60.0
"""How long another process may hold the file before it counts as broken; it is held for the writing of one row."""


class PaidCache(ABC, Generic[T]):
    """key -> what was paid for. The first value under a key stays, so that all who ask agree. A write-ahead log: a kill
    at any instant loses nothing that `keep` has returned from; a power failure may lose the last rows, which are then
    asked again. Not for network file systems. Raises StorageError where the file cannot be used."""

    table: str
    columns: tuple[str, ...]
    what: str
    """For messages: "the judge's verdicts"."""

    def __init__(self, path: Path, *, setting: str) -> None:
        """setting: the configuration's key for the file."""
        self._path, self._setting = path.expanduser(), setting
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    @abstractmethod
    def _row(self, value: T) -> tuple[str, ...]: ...

    @abstractmethod
    def _value(self, row: tuple[str, ...]) -> T: ...

    async def find(self, key: str) -> T | None:
        return await asyncio.to_thread(self._find, key)

    async def keep(self, key: str, value: T) -> T:
        """What is kept under the key from here on."""
        return await asyncio.to_thread(self._keep, key, value)

    async def holds_any(self) -> bool:
        return await asyncio.to_thread(self._holds_any)

    def close(self) -> None:
        """The next call would open it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _find(self, key: str) -> T | None:
        with self._opened() as connection:
            sought = f"SELECT {', '.join(self.columns)} FROM {self.table} WHERE key = ?"
            row = connection.execute(sought, (key,)).fetchone()
        return None if row is None else self._value(row)

    def _holds_any(self) -> bool:
        with self._opened() as connection:
            return connection.execute(f"SELECT 1 FROM {self.table} LIMIT 1").fetchone() is not None

    def _keep(self, key: str, value: T) -> T:
        row = [key, *(text.encode("utf-8", "replace").decode() for text in self._row(value))]
        marks = ", ".join("?" * len(row))
        with self._opened() as connection:
            connection.execute(f"INSERT INTO {self.table} VALUES ({marks}) ON CONFLICT DO NOTHING", row)
        kept = self._find(key)
        assert kept is not None
        return kept

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None or self._process != os.getpid():  # a forked child needs one of its own
                    self._connection, self._process = self._open(), os.getpid()
                yield self._connection
            except (sqlite3.Error, OSError) as e:
                raise StorageError(
                    f"{self._path}: {e}: {self.what} cannot be kept there; give {self._setting} another file (one that "
                    "is damaged can be deleted), or null"
                ) from e

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            fields = ", ".join(f"{column} TEXT NOT NULL" for column in self.columns)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table} (key TEXT PRIMARY KEY, {fields})")
        except sqlite3.Error:
            connection.close()
            raise
        return connection


class VerdictCache(PaidCache[Opinion]):
    table, columns, what = "verdicts", ("scores", "reason"), "the judge's verdicts"

    def __init__(self, path: Path, *, setting: str = "judge.cache") -> None:
        super().__init__(path, setting=setting)

    def _row(self, value: Opinion) -> tuple[str, ...]:
        return json.dumps(value.scores), value.reason

    def _value(self, row: tuple[str, ...]) -> Opinion:
        return Opinion(tuple(json.loads(row[0])), row[1])
