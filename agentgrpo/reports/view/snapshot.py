"""The blocks of runs that may still be running: built on request, and rebuilt if a file has changed."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agentgrpo.core.errors import DataError
from agentgrpo.records.metrics import METRICS, PROFILE, TIMINGS
from agentgrpo.records.run_dir import CONFIG, STOPPED, TrajectoryFile
from agentgrpo.reports.view.blocks import CHUNK, ShownFile, index, overview
from agentgrpo.reports.view.embedding import chunk
from agentgrpo.reports.view.episode import IndexRow
from agentgrpo.reports.view.facts import facts_of
from agentgrpo.reports.view.source import RunSource, ShownEpisode, on_one_line

if TYPE_CHECKING:
    from agentgrpo.reports.view.ratios import Ratios

_CHUNK = re.compile(r"chunk-([0-9]{1,9})")
_KEPT_CHUNKS = 32
_READ = (CONFIG, "environment.json", "eval.json", METRICS, TIMINGS, PROFILE, STOPPED)
_Stamp: TypeAlias = tuple[tuple[int, int], ...]
"""(modification time, bytes) of files."""


class PageBlock(NamedTuple):
    data: bytes
    """JSON."""
    tag: str
    """Changes with every change of the files. It also differs between servers, whose data may be scored with other
    weights."""


class _Rows(NamedTuple):
    """The parsed rows of a trajectory file."""

    stamp: _Stamp
    rows: tuple[IndexRow, ...]
    has_tokens: bool
    damaged: str | None


class Snapshot:
    """The blocks as of the last request for `overview`, so that episode numbers mean the same in all blocks.
    Thread-safe."""

    def __init__(
        self, sources: Sequence[RunSource], *, ratios: Ratios | None = None, ratio_of: str | None = None
    ) -> None:
        self._sources, self._ratios, self._ratio_of = sources, ratios, ratio_of
        self._lock = threading.Lock()
        self._read: dict[Path, _Rows] = {}
        self._files: list[ShownFile] = []
        self._blocks: dict[str, bytes] = {}
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._stamp: object = None
        self._generation = ""

    def block(self, name: str, *, known: str | None = None) -> PageBlock | None:
        """The block `name`; None if it is unknown; with empty data if its tag equals `known`. Raises DataError and
        OSError for a file that changed since the overview."""
        with self._lock:
            if name == "overview" or not self._blocks:
                self._refresh()
            chunk_number = _CHUNK.fullmatch(name)
            tag = f"{self._generation}-{name}"
            if tag == known:
                return PageBlock(b"", tag)
            data = self._chunk(int(chunk_number[1])) if chunk_number else self._blocks.get(name)
            return None if data is None else PageBlock(data, tag)

    def _refresh(self) -> None:
        files = [(i, file) for i, s in enumerate(self._sources) for file in s.run.trajectory_files()]
        stamps = [_stamp(file.path, file.clocks_path) for _, file in files]
        stamp = [
            *(_stamp(*(s.run.path / name for name in _READ), *s.run.checkpoints().values()) for s in self._sources),
            *stamps,
        ]
        if stamp == self._stamp:
            return
        for source in self._sources:
            source.find_tokenizer()
        self._read = {file.path: self._rows(i, file, at) for (i, file), at in zip(files, stamps, strict=True)}
        read = [*self._read.values()]
        self._files = [ShownFile(i, file, len(r.rows), r.damaged) for (i, file), r in zip(files, read, strict=True)]
        has_tokens = {i for (i, _), r in zip(files, read, strict=True) if r.has_tokens}
        runs = [
            facts_of(s.run, s.name, has_tokens=i in has_tokens, ratio_of=self._ratio_of if i in has_tokens else None)
            for i, s in enumerate(self._sources)
        ]
        rows = [row for r in read for row in r.rows]
        self._blocks = {"overview": overview(runs, self._files), "index": index(self._files, rows)}
        self._generation = secrets.token_hex(8)
        self._chunks.clear()
        self._stamp = stamp

    def _rows(self, number: int, file: TrajectoryFile, stamp: _Stamp) -> _Rows:
        known = self._read.get(file.path)
        if known is not None and known.stamp == stamp:
            return known
        rows, has_tokens, damaged = list[IndexRow](), False, None
        try:
            for row, has in self._sources[number].rows(file):
                rows.append(row)
                has_tokens = has_tokens or has
        except (DataError, OSError) as e:
            damaged = on_one_line(e)
        return _Rows(stamp, tuple(rows), has_tokens, damaged)

    def _chunk(self, number: int) -> bytes | None:
        found = self._chunks.pop(number, None)
        if found is None:
            shown = list(self._episodes(number * CHUNK, (number + 1) * CHUNK))
            found = chunk(shown, self._ratios) if shown else None
        if found is not None:
            self._chunks[number] = found
        if len(self._chunks) > _KEPT_CHUNKS:
            self._chunks.popitem(last=False)
        return found

    def _episodes(self, start: int, end: int) -> Iterator[tuple[RunSource, ShownEpisode]]:
        """The episodes of the page from number `start` up to but excluding `end`."""
        first = 0
        for file in self._files:
            skipped = max(0, start - first)
            wanted = min(file.num_episodes, end - first) - skipped
            first += file.num_episodes
            if wanted > 0:
                source = self._sources[file.run]
                read = list(islice(source.episodes(file.file, first=skipped), wanted))
                if len(read) != wanted:
                    raise DataError(f"{file.file.path}: {wanted - len(read)} episodes fewer than before")
                yield from ((source, shown) for shown in read)


def _stamp(*paths: Path) -> _Stamp:
    found = (path.stat() if path.exists() else None for path in paths)
    return tuple((stat.st_mtime_ns, stat.st_size) if stat else (0, -1) for stat in found)
