"""What the page is made of: named blocks of JSON. All episodes in columns, the runs, and the episodes in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from agentgrpo.records.run_dir import TrajectoryFile
from agentgrpo.records.trajectories import line
from agentgrpo.reports.view.episode import IndexRow

VERSION = 1
CHUNK = 64
"""Episodes of a chunk: what is decoded to look at one."""
_CODED = ("task", "kind", "exit", "status", "error", "dropped")
"""Columns with few values: a list of these, and each episode's place in it."""


class ShownFile(NamedTuple):
    """A trajectory file and how many of its episodes are shown."""

    run: int
    """Place among the runs of the page."""
    file: TrajectoryFile
    num_episodes: int
    damaged: str | None = None
    """Why there may be episodes that are not shown."""


def overview(runs: Sequence[Mapping[str, Any]], files: Sequence[ShownFile]) -> bytes:
    """runs: as facts.facts_of has them."""
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
    """JSON in ASCII, so that no half of a surrogate pair is in the way, with null for what is not finite."""
    return line({"": block})[4:-1].encode("ascii")


def _coded(values: Sequence[Any]) -> dict[str, list[Any]]:
    codes: dict[Any, int] = {}
    coded = [codes.setdefault(value, len(codes)) for value in values]
    return {"values": list(codes), "codes": coded}
