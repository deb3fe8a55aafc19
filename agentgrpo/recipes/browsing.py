"""Finding an episode in the trajectories of a run."""

from __future__ import annotations

import difflib
from pathlib import Path

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.recipes.lines import signed
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories

LATEST = "eval-end-greedy.jsonl"
_SHOWN = 8


def trajectory_file(run_dir: Path, *, name: str | None, step: str | None) -> Path:
    """The file of that name in the run's trajectories, or of that step of training; with neither the greedy evaluation
    of the end weights, or else the last step. Raises ConfigError where there is none."""
    if name is not None and step is not None:
        raise ConfigError(f"--file {name} and --step {step}: give one of them")
    folder = run_dir / "trajectories"
    known = sorted(p.name for p in folder.glob("*.jsonl") if not p.name.endswith(".timings.jsonl"))
    if not known:
        raise ConfigError(f"{run_dir} has no trajectories; give the directory of a run that has begun, such as runs/x")
    if step is not None:
        if not (step.isascii() and step.isdigit()):
            raise ConfigError(f"--step {step}; the number of a step is allowed, such as 0")
        name = f"train-{int(step):06d}.jsonl"
    if name is None:
        steps = [n for n in known if n.startswith("train-")]
        name = LATEST if LATEST in known else (steps or known)[-1]
    found = next((n for n in known if n in (name, f"{name}.jsonl")), None)
    if found is None:
        some = ", ".join([*known[:_SHOWN], *(["..."] if len(known) > _SHOWN else [])])
        raise ConfigError(f"{folder} has no {name}; it has {some}.{did_you_mean(name, known)}")
    return folder / found


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
