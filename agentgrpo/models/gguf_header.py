"""Reads the header of a GGUF file within bounds, before a library reads it, which trusts every number.

    "GGUF" version tensors keys | key type value ... | tensor: name dimensions type offset ... | padding | weights

Whatever the file holds, reading takes time and memory in proportion to its size, and no more than the header of a
published model takes. Of the values only the alignment is kept.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

_VERSIONS = (2, 3)
_MOST_NAMES = 100_000
"""Maximum number of keys of a file, and of tensors."""
_MOST_VALUES = 4_000_000
"""Maximum values in all lists of a file: twice the words, scores, kinds and merges of the largest vocabularies."""
_LONGEST_NAME = 65_535
_MOST_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
_ALIGNMENT, _DEFAULT_ALIGNMENT, _MOST_ALIGNMENT = "general.alignment", 32, 2**20


def read_header(file: Path) -> int:
    """The number of values in all tensors of the file. Raises ValueError with a one-line message if the header is not
    whole, or describes more than the file holds."""
    with file.open("rb") as opened:
        return _Header(opened, os.fstat(opened.fileno()).st_size).read()


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._num_values = file, size, 0

    def read(self) -> int:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self._number("<I")) not in _VERSIONS:
            raise ValueError(f"version {version}; allowed are {' and '.join(map(str, _VERSIONS))}")
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        for what, count in (("tensors", num_tensors), ("keys", num_keys)):
            if count > _MOST_NAMES:
                raise ValueError(f"{count} {what}; {_MOST_NAMES} are allowed")
        alignment = _DEFAULT_ALIGNMENT
        for key in self._names(num_keys, "key"):
            kind = self._number("<I")
            value = self._value(kind, key)
            if key == _ALIGNMENT:
                alignment = value if kind == 4 else 0
        if not 0 < alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(f"{_ALIGNMENT} is no power of two up to {_MOST_ALIGNMENT}")
        tensors = {name: self._tensor(name, alignment) for name in self._names(num_tensors, "tensor")}
        begin = -(-self._file.tell() // alignment) * alignment
        places = sorted((offset, offset + num_bytes, name) for name, (offset, num_bytes, _) in tensors.items())
        for (_, end, name), (offset, _, other) in pairwise(places):
            if offset < end:
                raise ValueError(f"the tensors {name!r} and {other!r} overlap")
        if places and begin + places[-1][1] > self._size:
            raise ValueError(f"the tensor {places[-1][2]!r} ends behind the end of the file")
        return sum(count for _, _, count in tensors.values())

    def _names(self, count: int, what: str) -> Any:
        """Yield the names in order; the caller reads the data behind each name before the next name is read."""
        known: set[str] = set()
        for _ in range(count):
            name = self._name()
            if name in known:
                raise ValueError(f"it has two {what}s {name[:80]!r}")
            known.add(name)
            yield name

    def _value(self, kind: int, key: str) -> Any:
        if kind == _TEXT:
            self._skip(self._number("<Q"))
        elif kind == _LIST:
            self._list(self._number("<I"), self._number("<Q"), key)
        elif kind in _SCALARS:
            return self._number(_SCALARS[kind])
        else:
            raise ValueError(f"the key {key[:80]!r} is of kind {kind}; allowed are 0 to 12")
        return None

    def _list(self, kind: int, count: int, key: str) -> None:
        self._num_values += count
        if self._num_values > _MOST_VALUES:
            raise ValueError(f"the list {key[:80]!r} has {count} values; {_MOST_VALUES} are allowed in all lists")
        if kind in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _TEXT:
            for _ in range(count):
                self._skip(self._number("<Q"))
        else:
            raise ValueError(f"the list {key[:80]!r} has items of kind {kind}; numbers and texts are allowed in lists")

    def _tensor(self, name: str, alignment: int) -> tuple[int, int, int]:
        """(offset behind the header, bytes, number of values)."""
        from gguf.constants import GGML_QUANT_SIZES

        if not 1 <= (dimensions := self._number("<I")) <= _MOST_DIMENSIONS:
            raise ValueError(
                f"the tensor {name[:80]!r} has {dimensions} dimensions; allowed are 1 to {_MOST_DIMENSIONS}"
            )
        shape = [self._number("<Q") for _ in range(dimensions)]
        kind, offset, count = self._number("<I"), self._number("<Q"), 1
        for length in shape:
            count *= length
        sizes = {int(known): size for known, size in GGML_QUANT_SIZES.items()}
        if kind not in sizes:
            raise ValueError(f"the tensor {name[:80]!r} is of kind {kind}; the package gguf has no such kind")
        block, num_bytes = sizes[kind]
        if not count or shape[0] % block or offset % alignment:
            raise ValueError(f"the tensor {name[:80]!r} has the shape {shape} at {offset}; its kind does not allow it")
        return offset, count // block * num_bytes, count

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _name(self) -> str:
        length = self._number("<Q")
        if length > _LONGEST_NAME:
            raise ValueError(f"a name of {length} bytes; {_LONGEST_NAME} are allowed")
        return self._take(length).decode("utf-8", "backslashreplace")

    def _take(self, count: int) -> bytes:
        self._require(count)
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        self._require(count)
        self._file.seek(count, os.SEEK_CUR)

    def _require(self, count: int) -> None:
        if count > self._size - self._file.tell():
            raise ValueError(f"the header ends behind the end of the file ({self._size} bytes)")
