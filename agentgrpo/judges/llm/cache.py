"""Verdicts that were paid for, in one SQLite file that any number of processes share."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgrpo.errors import StorageError
from agentgrpo.judges.llm.verdict import Opinion

_TABLE = "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, scores TEXT NOT NULL, reason TEXT NOT NULL)"
_BUSY_S = 60.0
"""How long another process may hold the file before it counts as broken; it is held for the writing of one row."""


class VerdictCache:
    """key -> Opinion. The first verdict under a key stays, so that all who ask agree. A write-ahead log: a kill at any
    instant loses nothing that `keep` has returned from; a power failure may lose the last rows, which are then asked
    again. Not for network file systems. Raises StorageError where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    async def find(self, key: str) -> Opinion | None:
        return await asyncio.to_thread(self._find, key)

    async def keep(self, key: str, opinion: Opinion) -> Opinion:
        """What is kept under the key from here on."""
        return await asyncio.to_thread(self._keep, key, opinion)

    async def holds_any(self) -> bool:
        return await asyncio.to_thread(self._holds_any)

    def close(self) -> None:
        """The next call would open it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _find(self, key: str) -> Opinion | None:
        with self._opened() as connection:
            row = connection.execute("SELECT scores, reason FROM verdicts WHERE key = ?", (key,)).fetchone()
        return None if row is None else Opinion(tuple(json.loads(row[0])), row[1])

    def _holds_any(self) -> bool:
        with self._opened() as connection:
            return connection.execute("SELECT 1 FROM verdicts LIMIT 1").fetchone() is not None

    def _keep(self, key: str, opinion: Opinion) -> Opinion:
        row = (key, json.dumps(opinion.scores), opinion.reason.encode("utf-8", "replace").decode())
        with self._opened() as connection:
            connection.execute("INSERT INTO verdicts VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)
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
                    f"{self._path}: {e}: the judge's verdicts cannot be kept there; give judge.cache another file (one "
                    "that is damaged can be deleted), or null"
                ) from e

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_TABLE)
        except sqlite3.Error:
            connection.close()
            raise
        return connection
