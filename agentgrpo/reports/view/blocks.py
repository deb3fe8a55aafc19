"""The page's data: named blocks of JSON with all episodes as columns, the runs, and the episodes in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from agentgrpo.records.run_dir import TrajectoryFile
from agentgrpo.records.trajectories import line
from agentgrpo.reports.view.episode import IndexRow

VERSION = 1
CHUNK = 64
"""Episodes in a chunk; the page decodes a whole chunk to show one episode."""
_CODED = ("task", "kind", "exit", "status", "error", "dropped")
"""Columns with few distinct values, stored as a list of these and a code for each episode."""


class ShownFile(NamedTuple):
    """A trajectory file, and the number of its episodes shown."""

    run: int
    """Index among the runs of the page."""
    file: TrajectoryFile
    num_episodes: int
    damaged: str | None = None
    """The reason why episodes may be missing."""


def overview(runs: Sequence[Mapping[str, Any]], files: Sequence[ShownFile]) -> bytes:
    """runs: the results of facts.facts_of."""
    rows, first = [], 0
    for shown in files:
        file = shown.file
        rows.append(
            {
                "run": shown.run,
                "name": file.name,
                "policy": file.policy,
                "step": file.step,
                "mode": file.mode,
                "first": first,
                "count": shown.num_episodes,
                "damaged": shown.damaged,
            }
        )
        first += shown.num_episodes
    return encoded({"version": VERSION, "chunk": CHUNK, "num_episodes": first, "runs": runs, "files": rows})


def index(files: Sequence[ShownFile], rows: Sequence[IndexRow]) -> bytes:
    """rows: of all files, in order."""
    columns: dict[str, Any] = {"file": [i for i, shown in enumerate(files) for _ in repeat(None, shown.num_episodes)]}
    for place, name in enumerate(IndexRow._fields):
        values = [row[place] for row in rows]
        columns[name] = _coded(values) if name in _CODED else values
    return encoded(columns)


def encoded(block: Any) -> bytes:
    """ASCII JSON, so that lone surrogates are escaped; numbers that are not finite become null."""
    return line({"": block})[4:-1].encode("ascii")


def _coded(values: Sequence[Any]) -> dict[str, list[Any]]:
    codes: dict[Any, int] = {}
    coded = [codes.setdefault(value, len(codes)) for value in values]
    return {"values": list(codes), "codes": coded}
