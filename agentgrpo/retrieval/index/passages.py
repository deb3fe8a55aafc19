"""A corpus on disk, read a passage at a time.

passages.jsonl     a line {"id", "text", "title"?, "url"?} for each passage
passages.offsets   count + 1 little-endian u64: the start of each line, and the end of the last one
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from agentgrpo.core.durable import storage_error, write_atomic
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import passage_of, well_formed

PASSAGES, OFFSETS = "passages.jsonl", "passages.offsets"
Offsets = npt.NDArray[np.uint64]
_OFFSET = np.dtype("<u8")
_BLOCK = 2**24


class PassageFile(Sequence[Passage]):
    """The passages of a memory-mapped JSON lines file; passages that are not read take no memory."""

    def __init__(self, path: Path, offsets: Offsets) -> None:
        """offsets: [count + 1]. Raises DataError if they do not belong to this file."""
        self._path, self._offsets = path, offsets
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if len(offsets) < 1 or int(offsets[-1]) > size:
                raise DataError(f"{path}: {size} bytes, but its offsets end elsewhere; build the index again")
            self._bytes: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    @classmethod
    def in_folder(cls, folder: Path) -> PassageFile:
        """Open the passages of an index folder. Raises ConfigError if a file is missing."""
        for name in (PASSAGES, OFFSETS):
            if not (folder / name).is_file():
                raise ConfigError(f"{folder} has no {name}; build the index again: agentgrpo index --out {folder}")
        return cls(folder / PASSAGES, np.memmap(folder / OFFSETS, _OFFSET, mode="r"))

    @classmethod
    def of_file(cls, path: Path) -> PassageFile:
        """Open any JSON lines file. Its offsets are computed in one pass, and stored beside it if that folder is
        writable. Raises ConfigError if `path` is not a file."""
        if not path.is_file():
            raise ConfigError(f"{path} is not a file; give the JSON lines file of the passages")
        stat = path.stat()
        kept = path.with_name(f"{path.name}.{stat.st_size}-{stat.st_mtime_ns}.offsets")
        if not kept.is_file():
            offsets = _offsets_in(path)
            with suppress(OSError):
                write_atomic(kept, offsets.tobytes())
            return cls(path, offsets)
        return cls(path, np.memmap(kept, _OFFSET, mode="r"))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Passage: ...

    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...

    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self._read(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._read(index)

    def _read(self, index: int) -> Passage:
        start, end = (int(offset) for offset in self._offsets[index : index + 2])
        try:
            row = json.loads(self._bytes[start:end])
            return passage_of(row if isinstance(row, dict) else {})
        except ValueError as e:
            raise DataError(f"{self._path}, row {index}: {e}") from e


def _offsets_in(path: Path) -> Offsets:
    """The starts of all lines and the end of the file. Blank lines count too, because FAISS counts rows."""
    found: list[Offsets] = []
    position, ends_line = 0, True
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            array = np.frombuffer(block, np.uint8)
            after = np.flatnonzero(array == 10).astype(np.uint64) + np.uint64(position + 1)
            found.append(np.concatenate(([np.uint64(position)], after)) if ends_line and not position else after)
            position += len(block)
            ends_line = block.endswith(b"\n")
    if not position:
        raise DataError(f"{path} has no passages; it is empty")
    starts = np.concatenate(found)
    end = np.uint64(position)
    return starts if starts[-1] == end else np.append(starts, end)


def row_of(passage: Passage) -> bytes:
    """The passage's line with its line end. The fingerprint of a corpus is computed over these bytes."""
    fields = {"id": passage.id, "text": passage.text, "title": passage.title, "url": passage.url}
    kept = {key: well_formed(value) for key, value in fields.items() if value or key in ("id", "text")}
    return json.dumps(kept, ensure_ascii=False).encode() + b"\n"


class PassageWriter:
    """Appends passages to a folder. `count` passages are stored durably; incomplete data after them is cut off."""

    def __init__(self, folder: Path) -> None:
        """Raises DataError if the passages file is shorter than its offsets say."""
        self._passages, self._offsets = folder / PASSAGES, folder / OFFSETS
        for path in (self._passages, self._offsets):
            path.touch()
        size = self._offsets.stat().st_size // _OFFSET.itemsize * _OFFSET.itemsize
        os.truncate(self._offsets, size)
        if not size:
            _append(self._offsets, bytes(_OFFSET.itemsize))
        with self._offsets.open("rb") as file:
            file.seek(-_OFFSET.itemsize, os.SEEK_END)
            self._end = int(np.frombuffer(file.read(), _OFFSET)[0])
        self.count = max(size // _OFFSET.itemsize - 1, 0)
        if self._passages.stat().st_size < self._end:
            raise DataError(f"{self._passages}: shorter than its offsets say; delete {folder} and build again")
        os.truncate(self._passages, self._end)

    def append(self, rows: Sequence[bytes]) -> None:
        """Append lines durably: first the lines, then their ends."""
        ends = self._end + np.cumsum([len(row) for row in rows], dtype=np.uint64)
        _append(self._passages, b"".join(rows))
        _append(self._offsets, ends.astype(_OFFSET).tobytes())
        self._end = int(ends[-1])
        self.count += len(rows)

    def rows(self) -> Iterator[bytes]:
        """The stored lines, in order."""
        with self._passages.open("rb") as file:
            yield from file


def _append(path: Path, data: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise storage_error(path, len(data), e) from e
