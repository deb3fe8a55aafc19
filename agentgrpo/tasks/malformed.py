"""Malformed rows in a user's files. All of them are counted before a run is refused, so that they can be fixed in one
pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from agentgrpo.core.errors import DataError, MalformedRows

SHOWN = 10
Row = TypeVar("Row")
Read = TypeVar("Read")


class Malformed:
    """count: number of malformed rows. first: the errors of the first ones, each with file and position."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, error: DataError) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(str(error))

    def spare(self, read: Callable[[Row], Read], rows: Iterable[Row]) -> Iterator[Read]:
        """Yield read(row) for each row; a row for which it raises DataError is counted and skipped."""
        for row in rows:
            try:
                found = read(row)
            except DataError as e:
                self.add(e)
            else:
                yield found

    def to_the_end(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the rows of a file; a DataError that ends the reading is counted, not raised."""
        try:
            yield from rows
        except DataError as e:
            self.add(DataError(f"{e} (what follows was not read)"))

    @property
    def text(self) -> str:
        """A line with the count, and one for each error in `first`."""
        head = f"{self.count:,} malformed row{'s' * (self.count > 1)}"
        head += f"; the first {SHOWN}:" if self.count > SHOWN else ":"
        return "\n  ".join([head, *self.first])

    def refuse(self) -> None:
        """Raise MalformedRows if a row was malformed."""
        if self.count:
            raise MalformedRows(self.first[0] if self.count == 1 else self.text)
