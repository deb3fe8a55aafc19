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
    raise ConfigError(f"--episode {id}: {path.name} has no such episode; {what}. Leave out --episode to list all")


def listing(path: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the file's episodes. Raises DataError for a broken file."""
    rows = []
    has_memory = False
    for record in read_trajectories(path):
        has_memory = has_memory or bool(record.memory)
        grade = "failed" if record.correctness is None else f"{record.correctness:.3f}"
        reward = signed(record.reward)
        size = record.memory[-1]["entries"] if record.memory else len(record.agent["tools"])
        rows.append([record.id, str(record.metadata.get("kind", "")), reward, grade, str(size)])
    return ["episode", "kind", "reward", "correctness", "entries" if has_memory else "calls"], rows
