"""What was paid for, such as verdicts or search results, under a key for each."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from agentgrpo.metering.shared_file import SharedFile

T = TypeVar("T")


class PaidCache(SharedFile, Generic[T]):
    """key -> what was paid for. The first value under a key stays, so that all who ask agree. What a power failure
    takes (see SharedFile) is asked again. Raises StorageError where the file cannot be used."""

    table: str
    columns: tuple[str, ...]
    what: str
    """For messages: "the judge's verdicts"."""
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
        """What is kept under the key from here on."""
        return await asyncio.to_thread(self._keep, key, value)

    async def holds_any(self) -> bool:
        return await asyncio.to_thread(self._holds_any)

    def find_each(self, keys: Sequence[str]) -> list[T | None]:
        """For a thread."""
        sought = f"SELECT {', '.join(self.columns)} FROM {self.table} WHERE key = ?"
        with self.opened() as connection:
            rows = [connection.execute(sought, (key,)).fetchone() for key in keys]
        return [None if row is None else self._value(row) for row in rows]

    def keep_each(self, values: Sequence[tuple[str, T]]) -> list[T]:
        """For a thread: what is kept under each key from here on."""
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
