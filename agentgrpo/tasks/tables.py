"""Rows of parquet files and of data sets stored by the `datasets` library. They are read in batches, and only the
requested columns, so that a file may be larger than memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.tasks.base import SPLITS

_BATCH = 1024
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
SPLIT_NAMES = {name: name for name in SPLITS} | dict.fromkeys(("validation", "valid", "val"), "dev")
"""Name of a split in rows and data sets -> our name."""
_FILES = (".jsonl", ".json", ".ndjson", ".parquet", ".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz")


class Table(Protocol):
    """A table whose rows are dicts, column -> value."""

    columns: Sequence[str]

    def rows(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the rows in order, without the columns in `without`. "a.b" is the field b of the column a; a table may
        read such a field nevertheless."""
        ...


class ParquetTable:
    """A parquet file. Raises DataError if it is not one, ConfigError without pyarrow."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as e:
            raise ConfigError(f"{path}: parquet files need pyarrow: pip install 'agentgrpo[data]'") from e
        self._path, self._errors = path, (ArrowException, OSError)
        with self._as_data_error():
            self._file = parquet.ParquetFile(path, memory_map=True)
            self.columns: Sequence[str] = self._file.schema_arrow.names

    def rows(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        leaves = [self._file.schema.column(i).path for i in range(len(self._file.schema.names))]
        unread = tuple(f"{column}." for column in without)
        wanted = [leaf for leaf in leaves if not f"{leaf}.".startswith(unread)] if without else None
        with self._as_data_error():
            for batch in self._file.iter_batches(batch_size=_BATCH, columns=wanted):
                yield from batch.to_pylist()

    @contextmanager
    def _as_data_error(self) -> Iterator[None]:
        try:
            yield
        except self._errors as e:
            raise DataError(f"{self._path}: not readable as parquet ({e}); is this the whole file?") from None


class StoredTable:
    """One part of a data set of the `datasets` library."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.columns: Sequence[str] = dataset.column_names

    def rows(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        dataset = self._dataset.select_columns([column for column in self.columns if column not in without])
        for batch in dataset.with_format("arrow").iter(batch_size=_BATCH):
            yield from batch.to_pylist()


def is_stored(name: str) -> bool:
    """Whether `name` is a data set of the `datasets` library, not a file: a folder, or a hub name NAMESPACE/NAME that
    is not the path of a file."""
    plain = _without_part(name)
    path = Path(plain).expanduser()
    is_named = bool(_HUB_NAME.fullmatch(plain)) and path.suffix.lower() not in _FILES and not path.exists()
    return path.is_dir() or is_named


@dataclass(frozen=True, slots=True)
class StoredPart:
    name: str
    """NAME, or NAME#PART."""
    split: str | None
    """Our name of the split; None if the data set has one part, or one was chosen."""
    table: Table


def stored_parts(name: str, subset: str | None) -> list[StoredPart]:
    """Return all parts of a data set, or the one part of NAME#PART.

    name: a folder written by save_to_disk, or a hub name, which is looked up in the local cache only; nothing is
    downloaded. subset: the hub's configuration. Raises DataError if there is no such data set or part, ConfigError
    without `datasets`."""
    try:
        import datasets
    except ImportError as e:
        raise ConfigError(f"'{name}' is a data set of the datasets library: pip install 'agentgrpo[data]'") from e
    plain, part = _without_part(name), name.partition("#")[2]
    path = Path(plain).expanduser()
    if path.is_dir():
        if not (path / "dataset_dict.json").is_file() and not (path / "state.json").is_file():
            raise DataError(f"'{plain}' is a folder without a data set; give a file, or what save_to_disk has written")
        found = datasets.load_from_disk(str(path))
    else:
        found = _cached(plain, subset)
    if not isinstance(found, datasets.DatasetDict):
        if part:
            raise DataError(f"'{plain}' has no parts; leave out #{part}")
        return [StoredPart(name, None, StoredTable(found))]
    if part:
        if part not in found:
            raise DataError(f"'{plain}' has {', '.join(found)}, and no part '{part}'; choose one of these")
        return [StoredPart(name, None, StoredTable(found[part]))]
    if stray := [key for key in found if key not in SPLIT_NAMES]:
        raise DataError(f"'{plain}' has a part '{stray[0]}', which is not a split; choose one: '{plain}#{stray[0]}'")
    return [StoredPart(f"{plain}#{key}", SPLIT_NAMES[key], StoredTable(value)) for key, value in found.items()]


def _cached(name: str, subset: str | None) -> Any:
    """Load a data set from the library's cache, whose builder asks no server and runs no code of the data set."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    space, _, own = name.rpartition("/")
    folder = Path(config.HF_DATASETS_CACHE).expanduser() / f"{space}___{camelcase_to_snakecase(own)}"
    subsets = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not subsets or (subset is not None and subset not in subsets):
        fetch = f"python -c \"import datasets; datasets.load_dataset('{name}'{f', {subset!r}' if subset else ''})\""
        there = f" (cached configurations: {', '.join(subsets)})" if subsets else ""
        raise DataError(f"'{name}' is neither a file nor in the datasets cache{there}; fetch it: {fetch}")
    if subset is None and len(subsets) > 1:
        raise DataError(f"'{name}' is in the cache as {', '.join(subsets)}; choose one by subset")
    with _quiet():
        return Cache(
            repo_id=name,
            dataset_name=own,
            config_name=subset or subsets[0],
            version="auto",
            hash="auto",
            cache_dir=str(config.HF_DATASETS_CACHE),
        ).as_dataset()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's message that it found the data set."""
    from datasets.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _without_part(name: str) -> str:
    return name.partition("#")[0]
