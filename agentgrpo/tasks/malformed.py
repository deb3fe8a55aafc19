"""Rows of a user's files that cannot be read: all of them are counted before a run is refused, so that they can be
mended at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from agentgrpo.core.errors import DataError, MalformedRows

SHOWN = 10
Row = TypeVar("Row")
Read = TypeVar("Read")


class Malformed:
    """count, and what is wrong with the first ones, each with its file and place."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, error: DataError) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(str(error))

    def spare(self, read: Callable[[Row], Read], rows: Iterable[Row]) -> Iterator[Read]:
        """What `read` makes of the rows, without those that it refuses by a DataError."""
        for row in rows:
            try:
                found = read(row)
            except DataError as e:
                self.add(e)
            else:
                yield found

    def to_the_end(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Of a file whose reading may break off."""
        try:
            yield from rows
        except DataError as e:
            self.add(DataError(f"{e} (what follows was not read)"))

    @property
    def text(self) -> str:
        """A line that counts, and one for each of the first."""
        head = f"{self.count:,} malformed row{'s' * (self.count > 1)}"
        head += f"; the first {SHOWN}:" if self.count > SHOWN else ":"
        return "\n  ".join([head, *self.first])

    def refuse(self) -> None:
        """Raise MalformedRows where there is one."""
        if self.count:
            raise MalformedRows(self.first[0] if self.count == 1 else self.text)
