"""From the name of a file or data set to its questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentgrpo.errors import DataError
from agentgrpo.tasks.questions.entry import Entry
from agentgrpo.tasks.questions.formats import FORMATS, Format, format_of
from agentgrpo.tasks.questions.plain import plain
from agentgrpo.tasks.records import Node, read_records, read_table, read_text, rows_of
from agentgrpo.tasks.tables import is_stored, stored_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Records that belong together: a file, or a part of a data set."""

    name: str
    split: str | None
    """Where the data set says that it belongs."""
    records: Callable[[Sequence[str] | None], Iterator[Node]]
    """Columns that are needed (None = all) -> the records, from the first one on."""


def parts_of(name: str, *, subset: str | None = None, what: str = "path") -> list[Part]:
    """What `name` holds. what: the key that says it, for messages. Raises DataError where there is nothing, ConfigError
    for a package that is missing."""
    if is_stored(name):
        return [
            Part(name=part.name, split=part.split, records=partial(rows_of, Path(part.name), part.table))
            for part in stored_parts(name, subset)
        ]
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"{what}: '{name}' is not a file; give the path of one, or a data set as NAMESPACE/NAME")
    if path.suffix in (".csv", ".tsv"):
        return [Part(name=name, split=None, records=lambda columns: read_table(path, read_text(path)))]
    return [Part(name=name, split=None, records=partial(read_records, path))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A part whose format is known."""

    part: Part
    name: str
    """Of the format."""
    format: Format
    columns: Sequence[str] | None

    def records(self) -> Iterator[Node]:
        return self.part.records(self.columns)

    def entries(self) -> Iterator[Entry]:
        for node in self.records():
            yield from self.format.read(node)


def opened(part: Part, format: str = "auto", keys: Mapping[str, str] | None = None) -> Opened:
    """format: auto = as the first record looks, or the name of the one it is said to be; keys: of plain, what is called
    otherwise. Raises DataError for an empty part, and for records of no known format."""
    first = next(part.records(None), None)
    if first is None:
        raise DataError(f"'{part.name}' has no questions; give a file of at least one record")
    if keys:
        return Opened(part=part, name="plain", format=Format(fits=lambda _: True, read=plain(keys)), columns=None)
    name = format_of(first) if format == "auto" else format
    found = FORMATS[name]
    return Opened(part=part, name=name, format=found, columns=found.columns(first.object()))
