"""Finding an episode in the trajectories of a run."""

from __future__ import annotations

import difflib
from pathlib import Path

from agentgrpo.errors import ConfigError
from agentgrpo.recipes.lines import signed
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories


def find_episode(path: Path, id: str) -> TrajectoryRecord:
    """Raises ConfigError where there is none, with those that are called nearly so, and DataError for a broken file."""
    known = []
    for record in read_trajectories(path):
        if record.id == id:
            return record
        known.append(record.id)
    near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    what = f"the nearest are {', '.join(near)}" if near else f"the first are {', '.join(known[:3]) or 'none'}"
    raise ConfigError(f"--episode {id}: {path.name} has no such episode; {what}. List them all with --list")


def listing(path: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the file's episodes: how many calls each made and, where one kept a memory, how many
    entries it has in the end. Raises DataError for a broken file."""
    rows, entries = [], []
    for record in read_trajectories(path):
        grade = "failed" if record.correctness is None else f"{record.correctness:.3f}"
        kind, calls = str(record.metadata.get("kind", "")), str(len(record.agent["tools"]))
        rows.append([record.id, kind, signed(record.reward), grade, calls])
        entries.append([str(record.memory[-1]["entries"]) if record.memory else "none"])
    head = ["episode", "kind", "reward", "correctness", "calls"]
    if all(cell == ["none"] for cell in entries):
        return head, rows
    return [*head, "entries"], [row + more for row, more in zip(rows, entries, strict=True)]
