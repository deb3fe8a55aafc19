"""Writes runs to a page that opens from disk; each trajectory file is read once, a chunk of episodes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agentgrpo.core.durable import atomic_stream
from agentgrpo.core.errors import DataError
from agentgrpo.records.run_dir import TrajectoryFile
from agentgrpo.reports.view.blocks import CHUNK, ShownFile, encoded, index, overview
from agentgrpo.reports.view.episode import IndexRow
from agentgrpo.reports.view.facts import facts_of
from agentgrpo.reports.view.page import HtmlPage, element
from agentgrpo.reports.view.source import RunSource, ShownEpisode, on_one_line

if TYPE_CHECKING:
    from agentgrpo.reports.view.ratios import Ratios


Reached: TypeAlias = Callable[[int, int, int], None]


class WrittenPage(NamedTuple):
    num_episodes: int
    num_bytes: int
    damage: tuple[str, ...]
    """A line for each file or part that could not be read."""


def write_page(
    out: Path,
    sources: Sequence[RunSource],
    page: HtmlPage,
    *,
    ratios: Ratios | None = None,
    ratio_of: str | None = None,
    reached: Reached = lambda done, position, total: None,
) -> WrittenPage:
    """Replace `out` (StorageError). Damaged parts are left out and reported; the rest is shown. reached: called
    repeatedly with the number of episodes read, the bytes of files read, and the bytes of all files."""
    found = [(number, source, file) for number, source in enumerate(sources) for file in source.run.trajectory_files()]
    sizes = (file.path.stat().st_size if file.path.exists() else 0 for _, _, file in found)
    behind = [0, *accumulate(sizes)]
    with atomic_stream(out) as write:
        chunks = _Chunks(write, ratios)
        write(page.head)
        files, rows, damage = list[ShownFile](), list[IndexRow](), list[str]()
        has_tokens: set[str] = set()
        for i, (number, source, file) in enumerate(found):
            before, said = len(rows), len(damage)
            for shown in _whole(source, file, damage):
                rows.append(shown.row)
                if shown.record.branches:
                    has_tokens.add(source.name)
                if chunks.add(source, shown):
                    reached(len(rows), behind[i], behind[-1])
            files.append(ShownFile(number, file, len(rows) - before, next(iter(damage[said:]), None)))
            reached(len(rows), behind[i + 1], behind[-1])
        chunks.flush()
        scored = ratios.scored if ratios else set()
        runs = [
            facts_of(s.run, s.name, has_tokens=s.name in has_tokens, ratio_of=ratio_of if s.name in scored else None)
            for s in sources
        ]
        damage += [line for run in runs for line in run["damage"]]
        write(element("overview", overview(runs, files)))
        write(element("index", index(files, rows)))
        write(page.tail)
    return WrittenPage(len(rows), out.stat().st_size, tuple(damage))


def _whole(source: RunSource, file: TrajectoryFile, damage: list[str]) -> Iterator[ShownEpisode]:
    """The episodes of a file up to a damaged line, whose error is appended to `damage`."""
    try:
        yield from source.episodes(file)
    except (DataError, OSError) as e:
        damage.append(on_one_line(e))


class _Chunks:
    """Collects episodes and writes a chunk whenever it has CHUNK of them."""

    def __init__(self, write: Callable[[bytes], None], ratios: Ratios | None) -> None:
        self._write, self._ratios = write, ratios
        self._waiting: list[tuple[RunSource, ShownEpisode]] = []
        self._number = 0

    def add(self, source: RunSource, shown: ShownEpisode) -> bool:
        """Add an episode and return whether it completed a chunk."""
        self._waiting.append((source, shown))
        is_full = len(self._waiting) == CHUNK
        if is_full:
            self.flush()
        return is_full

    def flush(self) -> None:
        if self._waiting:
            self._write(element(f"chunk-{self._number}", chunk(self._waiting, self._ratios)))
            self._number += 1
            self._waiting.clear()


def chunk(shown: Sequence[tuple[RunSource, ShownEpisode]], ratios: Ratios | None) -> bytes:
    """The block of a chunk of episodes."""
    if ratios is not None:
        for source in {id(source): source for source, _ in shown}.values():
            ratios.fill(source, [one for of, one in shown if of is source])
    return encoded([one.episode for _, one in shown])
