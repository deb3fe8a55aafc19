"""A corpus on disk: JSON lines, plain or gzipped, of any size."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from agentgrpo.errors import DataError
from agentgrpo.retrievers.corpus import passage_of
from agentgrpo.types import Passage

MAX_LINE_BYTES = 64 * 2**20


class CorpusFile:
    """Lines of `corpus.passage_of`; empty ones do not count. One line is in memory at a time.

    Raises DataError, with the file and the reason, for one that cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        """The line that was read last, 1-based."""
        try:
            self._raw: IO[bytes] = path.open("rb")
            self.size = path.stat().st_size
        except OSError as e:
            raise DataError(f"{path} cannot be read: {e.strerror}; give a file of JSON lines, plain or gzipped") from e
        magic = self._raw.read(2)
        self._raw.seek(0)
        self._lines: Any = gzip.GzipFile(fileobj=self._raw) if magic == b"\x1f\x8b" else self._raw

    def __enter__(self) -> CorpusFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    @property
    def position(self) -> int:
        """Bytes of the file that are read, of `size`."""
        return self._raw.tell()

    def passages(self) -> Iterator[Passage]:
        """Raises DataError with file, line and reason for what is malformed or cut off."""
        for line in self._texts():
            try:
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ValueError(f"a JSON {type(document).__name__}, not an object")
                passage = passage_of(document)
            except (ValueError, RecursionError) as e:
                raise self._refusal(f'{e}; a line is {{"id", "contents"}} or {{"id", "text", "title"?, "url"?}}') from e
            yield passage

    def _texts(self) -> Iterator[bytes]:
        """The lines that are not empty."""
        while True:
            self.line += 1
            try:
                line: bytes = self._lines.readline(MAX_LINE_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as e:
                raise self._refusal(f"{e}; the file is damaged or was cut off: fetch it again") from e
            if not line:
                return
            if len(line) == MAX_LINE_BYTES:
                raise self._refusal(f"longer than {MAX_LINE_BYTES // 2**20} MiB; a passage a line is allowed")
            if line.strip():
                yield line

    def _refusal(self, reason: str) -> DataError:
        return DataError(f"{self.path}, line {self.line}: {reason}")
