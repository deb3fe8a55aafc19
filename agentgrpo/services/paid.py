"""A cache of paid results, such as verdicts or search results, by key."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from abc import abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentgrpo.core.durable import before
from agentgrpo.core.errors import StorageError

# --- An SQLite file shared by any number of processes.

_INTO_THE_FILE = "PRAGMA wal_checkpoint(PASSIVE)"
_BUSY_S = 60.0
"""Seconds that another process may hold the file before it counts as broken; writing a few rows takes much less."""


class SharedFile:
    """An SQLite file with a write-ahead log. A kill at any instant loses no committed transaction; a power failure may
    lose the last ones. Not for network file systems. The file is opened on first use."""

    def __init__(self, path: Path, *, what: str, schema: str, advice: str, read_only: bool = False) -> None:
        """what: the content, for messages: "the judge's verdicts". schema: SQL that may be executed repeatedly. advice:
        the remedy for messages if the file cannot be used."""
        self._path, self._what, self._schema, self._advice = path.expanduser(), what, schema, advice
        self._read_only = read_only
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                if not self._read_only:
                    with suppress(sqlite3.Error):  # transactions left in the log are committed all the same
                        self._connection.execute(_INTO_THE_FILE)
                self._connection.close()
            self._connection = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to one thread at a time; each statement is committed by itself. Raises StorageError if
        the file cannot be used."""
        with self._lock:
            try:
                if self._connection is None or self._process != os.getpid():  # a forked child needs its own connection
                    self._connection, self._process = self._open(), os.getpid()
                yield self._connection
            except (sqlite3.Error, OSError) as e:
                raise self.unusable(e) from e

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; other processes wait."""
        with self.opened() as connection:
            before("begin", self._path)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                before("commit", self._path)
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
        # Without write access to the folder the file cannot be shared with a writer, and need not: nobody writes there.
        alone = "" if os.access(self._path.parent, os.W_OK) else "&immutable=1"
        log = self._path.with_name(f"{self._path.name}-wal")
        if alone and log.is_file() and log.stat().st_size:
            raise OSError(f"its latest rows are in {log.name}, which SQLite reads only with write access to the folder")
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro{alone}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )


def _with_log(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on. If two processes open a new file at once, SQLite refuses the second one without
    waiting, so try again."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


T = TypeVar("T")


class PaidCache(SharedFile, Generic[T]):
    """A file of key -> paid result. The first value under a key is kept, so that all callers get the same. Values lost
    in a power failure (see SharedFile) are asked again. Raises StorageError if the file cannot be used."""

    table: str
    columns: tuple[str, ...]
    what: str
    """Content of the file, for messages: "the judge's verdicts"."""
    advice = "give {setting} another file (one that is damaged can be deleted), or null"

    def __init__(self, path: Path, *, setting: str, read_only: bool = False) -> None:
        """setting: the configuration's key for the file."""
        fields = ", ".join(f"{column} TEXT NOT NULL" for column in self.columns)
        super().__init__(
            path,
            what=self.what,
            schema=f"CREATE TABLE IF NOT EXISTS {self.table} (key TEXT PRIMARY KEY, {fields})",
            advice=self.advice.format(setting=setting),
            read_only=read_only,
        )

    @abstractmethod
    def _row(self, value: T) -> tuple[str, ...]: ...

    @abstractmethod
    def _value(self, row: tuple[str, ...]) -> T: ...

    async def find(self, key: str) -> T | None:
        return await asyncio.to_thread(self._find, key)

    async def keep(self, key: str, value: T) -> T:
        """Keep `value` unless the key has a value; returns the key's value."""
        return await asyncio.to_thread(self._keep, key, value)

    async def holds_any(self) -> bool:
        return await asyncio.to_thread(self._holds_any)

    def find_each(self, keys: Sequence[str]) -> list[T | None]:
        """Return the values of the keys, None for missing keys. Call it in a thread."""
        sought = f"SELECT {', '.join(self.columns)} FROM {self.table} WHERE key = ?"
        with self.opened() as connection:
            rows = [connection.execute(sought, (key,)).fetchone() for key in keys]
        return [None if row is None else self._value(row) for row in rows]

    def keep_each(self, values: Sequence[tuple[str, T]]) -> list[T]:
        """Keep each value unless its key has a value; returns the keys' values. Call it in a thread."""
        rows = [[key, *(text.encode("utf-8", "replace").decode() for text in self._row(v))] for key, v in values]
        marks = ", ".join("?" * (len(self.columns) + 1))
        with self.transaction() as connection:
            connection.executemany(f"INSERT INTO {self.table} VALUES ({marks}) ON CONFLICT DO NOTHING", rows)
        kept = [value for value in self.find_each([key for key, _ in values]) if value is not None]
        assert len(kept) == len(values)
        return kept

    def _find(self, key: str) -> T | None:
        return self.find_each([key])[0]

    def _holds_any(self) -> bool:
        with self.opened() as connection:
            return connection.execute(f"SELECT 1 FROM {self.table} LIMIT 1").fetchone() is not None

    def _keep(self, key: str, value: T) -> T:
        return self.keep_each([(key, value)])[0]


# --- Work with several waiters.


class Shared(Generic[T]):
    """A task with several waiters. A cancelled waiter does not disturb the others; the last one stops the task and
    waits for its end."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self.task.add_done_callback(_seen)
        self._waiters = 0
        self._is_given_up = False

    @property
    def is_over(self) -> bool:
        """Whether it is too late for new waiters: the task is done or was stopped."""
        return self._is_given_up or self.task.done()

    async def wait(self) -> T:
        self._waiters += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiters -= 1
            if not self._waiters and not self.task.done():
                self._is_given_up = True
                self.task.cancel()
                await asyncio.wait((self.task,))


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be left to ask for it
