"""A run that has been trained and evaluated to its end: whoever resumes it gets what it came to, at once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.durable import set_aside
from agentgrpo.errors import DataError
from agentgrpo.records.card import flatten
from agentgrpo.records.run_dir import EVAL, TRAJECTORIES, RunDir
from agentgrpo.records.trajectories import read_summary
from agentgrpo.settings import RunSettings
from agentgrpo.training.checkpoint import CheckpointStore

_CHANGES_NOTHING = ("run.", "guards.")
"""Of a run that is over; but for _CHANGES_RESULTS."""
_CHANGES_RESULTS = ("run.eval.", "run.seed")


def kept_result(run: RunSettings, step: int, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """eval.json's content where it is of the weights after `step` steps, the last, and of the settings in `config`;
    None where something is left to do."""
    run_dir = RunDir(Path(run.dir))
    if step < run.max_steps or not run.final_eval:
        return None
    try:
        result = run_dir.evaluation
        end = [file.path for file in run_dir.trajectory_files() if (file.policy, file.mode) == ("end", "sampled")]
        if result is None or "figures" not in result or not end or read_summary(end[0]).get("step") != step:
            return None
        before, now = flatten(run_dir.config), flatten(config)
    except DataError:  # damaged, or of another version
        return None
    differ = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    is_same = all(key.startswith(_CHANGES_NOTHING) and not key.startswith(_CHANGES_RESULTS) for key in differ)
    return dict(result) if is_same else None


def give_up_result(run: RunSettings, step: int) -> bool:
    """The run goes on after `step` steps. Where there will be another evaluation, or other weights, what there is goes
    to orphans/ with its episodes, so that it is never taken for that of the end; whether there was one."""
    run_dir = Path(run.dir)
    if not run.final_eval and step >= run.max_steps:  # nothing comes that it would not be of
        return False
    had_result = (run_dir / EVAL).is_file()
    set_result_aside(run_dir)
    if step < run.max_steps:
        for path in sorted((run_dir / TRAJECTORIES).glob("eval-end-*.jsonl")):  # with their clocks
            set_aside(path, run_dir / "orphans")
    return had_result


def set_result_aside(run_dir: Path) -> None:
    """What `agentgrpo eval` found in this directory before: it is not of what is evaluated now."""
    if (run_dir / EVAL).is_file():
        set_aside(run_dir / EVAL, run_dir / "orphans")


def next_commands(run: RunSettings, step: int) -> list[str]:
    """To look at a run that is over after `step` steps, and to evaluate its last checkpoint."""
    last = CheckpointStore(run_dir=Path(run.dir)).path(step)
    look = [f"agentgrpo view {shlex.quote(run.dir)}"]
    return [*look, f"agentgrpo eval --ckpt {shlex.quote(str(last))}"] if last.is_dir() else look
