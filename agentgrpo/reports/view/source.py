"""Reads a run's files into index rows and episodes for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgrpo.core.errors import DataError, line_of
from agentgrpo.records.run_dir import RunDir, TrajectoryFile
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.reports.view.episode import IndexRow, episode_of, row_of
from agentgrpo.reports.view.facts import config_of
from agentgrpo.reports.view.pieces import TokenTexts, pieces_of

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""Errors raised by a JSON line whose fields have malformed contents."""


class ShownEpisode(NamedTuple):
    """An episode on its way into the page."""

    file: TrajectoryFile
    record: TrajectoryRecord
    row: IndexRow
    episode: dict[str, Any]
    """Without ratios, which ratios.Ratios fills in."""


@dataclass
class RunSource:
    run: RunDir
    name: str
    """Unique name among the runs of the page."""
    pieces: TokenTexts | None = None
    """None if no tokenizer was found (yet)."""

    def find_tokenizer(self) -> str | None:
        """Look for a tokenizer. Return the error if the tokenizer is damaged, else None. Without a tokenizer texts are
        not divided into tokens."""
        try:
            self.pieces = self.pieces or pieces_of(self.run, config_of(self.run)[0])
        except (DataError, OSError) as e:
            return on_one_line(e)
        return None

    def rows(self, file: TrajectoryFile) -> Iterator[tuple[IndexRow, bool]]:
        """The index row of each episode, and whether its tokens were recorded. Raises DataError and OSError like
        `episodes`."""
        for shown in _episodes(file, None, 0):
            yield shown.row, bool(shown.record.branches)

    def episodes(self, file: TrajectoryFile, *, first: int = 0) -> Iterator[ShownEpisode]:
        """Yield the episodes from number `first` on. Raises DataError and OSError."""
        return _episodes(file, self.pieces, first)


def _episodes(file: TrajectoryFile, pieces: TokenTexts | None, first: int) -> Iterator[ShownEpisode]:
    clocks = file.clocks()
    for number, record in enumerate(read_trajectories(file.path, first=first), start=first):
        clock = clocks.get(record.id, {})
        try:
            row, episode = row_of(record, clock), episode_of(record, clock, pieces)
        except _MALFORMED as e:
            raise DataError(f"{file.path}:{number + 2}: {line_of(e)}") from e
        yield ShownEpisode(file, record, row, episode)


def on_one_line(error: BaseException) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
