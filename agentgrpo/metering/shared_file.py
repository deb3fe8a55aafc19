"""One SQLite file that any number of processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentgrpo.errors import StorageError

_INTO_THE_FILE = "PRAGMA wal_checkpoint(PASSIVE)"
_BUSY_S = 60.0
"""How long another process may hold the file before it counts as broken; it is held for the writing of a few rows."""


class SharedFile:
    """A write-ahead log: a kill at any instant loses nothing of a transaction that was committed; a power failure may
    lose the last ones. Not for network file systems. Opened when it is first used."""

    def __init__(self, path: Path, *, what: str, schema: str, advice: str, read_only: bool = False) -> None:
        """what: for messages, "the judge's verdicts". schema: SQL that may be executed again. advice: what to do where
        the file cannot be used."""
        self._path, self._what, self._schema, self._advice = path.expanduser(), what, schema, advice
        self._read_only = read_only
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def close(self) -> None:
        """The next call would open it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                if not self._read_only:
                    with suppress(sqlite3.Error):  # what stays in the log is committed all the same
                        self._connection.execute(_INTO_THE_FILE)
                self._connection.close()
            self._connection = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Each statement is committed by itself; one thread at a time. Raises StorageError where the file cannot be
        used."""
        with self._lock:
            try:
                if self._connection is None or self._process != os.getpid():  # a forked child needs one of its own
                    self._connection, self._process = self._open(), os.getpid()
                yield self._connection
            except (sqlite3.Error, OSError) as e:
                raise self.unusable(e) from e

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All statements of the block or none; other processes wait."""
        with self.opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def unusable(self, why: object) -> StorageError:
        verb = "read" if self._read_only else "kept"
        return StorageError(f"{self._path}: {why}: {self._what} cannot be {verb} there; {self._advice}")

    def _open(self) -> sqlite3.Connection:
        if self._read_only:
            return self._open_read_only()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _with_log(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(self._schema)
            connection.execute(_INTO_THE_FILE)  # a copy of the file alone, made at any time, is a database
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _open_read_only(self) -> sqlite3.Connection:
        # Who may not write beside the file cannot share it with a writer, and need not: nobody there writes.
        alone = "" if os.access(self._path.parent, os.W_OK) else "&immutable=1"
        log = self._path.with_name(f"{self._path.name}-wal")
        if alone and log.is_file() and log.stat().st_size:
            raise OSError(f"a part of it is in {log.name}, which nobody reads in a folder that may not be written to")
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro{alone}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )


def _with_log(connection: sqlite3.Connection) -> None:
    """Two processes that open a new file at once: SQLite refuses the change of the second without waiting."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
