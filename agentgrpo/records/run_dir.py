"""Reads a run's directory, for `view`, `show`, `replay`, `diff` and `report`.

    config.yaml           the configuration; environment.json, versions and machine
    metrics.jsonl         records.metrics, with timings.jsonl and profile.jsonl
    trajectories/         records.trajectories: train-000012.jsonl, eval-start-greedy.jsonl, ...
    seals.jsonl           records.seals: sizes and hashes of these files when they were written
    eval.json             the comparison, once made; evaluated.json, the weights compared (agentgrpo eval)
    stopped.json          records.run_dir: why the run stopped early, until it continues
    checkpoints/          model folders: step-000040 holds the weights after 40 steps

Nothing is locked, because the run may be in progress: files that it has yet to write are missing, and an incomplete
last row is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import AgentGrpoError, BudgetSpent, ConfigError, DataError, did_you_mean
from agentgrpo.core.renamed import config_of_today
from agentgrpo.core.untrusted import damaged, read_json, refuse_endless, refuse_special_files
from agentgrpo.records.metrics import METRICS, PROFILE, TIMINGS, read_metrics
from agentgrpo.records.seals import SEALS, Seal, is_whole, problems
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories

# --- stopped.json: why a run stopped early, until it continues.
#
#     {"step": 12, "max_steps": 40, "reason": "the budget is spent: budget.per_run.calls.web=100, ...",
#      "raised": "budget.per_run.calls.web=200"}
#
# step: completed steps in all; step and max_steps are null for an evaluation. raised: the setting to add to the command
# that continues the run; "" if none is needed.

STOPPED = "stopped.json"
_ADVICE = "; go on with: "
"""Separates an error's message from the advice on how to continue."""


def write_stop(run_dir: Path, error: Exception, *, step: int | None, max_steps: int | None) -> None:
    """Write stopped.json. Raises StorageError."""
    found = {
        "step": step,
        "max_steps": max_steps,
        "reason": _reason(error),
        "raised": error.raised if isinstance(error, BudgetSpent) else "",
    }
    write_atomic(run_dir / STOPPED, (json.dumps(found, indent=2) + "\n").encode())


def forget_stop(run_dir: Path) -> None:
    with suppress(FileNotFoundError):
        (run_dir / STOPPED).unlink()


def stop_sentence(stopped: Mapping[str, Any]) -> str:
    """A sentence for people that says where and why the run stopped."""
    step, of = stopped.get("step"), stopped.get("max_steps")
    if not (isinstance(step, int) and isinstance(of, int)):
        where = ""
    elif step == 0:
        where = " before its first step"
    else:
        where = f" after step {step} of {of}" if step < of else f" after its last step, {step}"
    return f"stopped{where}: {stopped.get('reason')}"


def _reason(error: Exception) -> str:
    """The error's message without the run's additions: that it stops, and how to continue."""
    origin = error.__cause__ if type(error.__cause__) is type(error) else error
    text = " ".join(str(origin).partition(_ADVICE)[0].split()).removeprefix("stopped by ")
    return text if isinstance(error, AgentGrpoError) else f"{type(error).__name__}: {text}"


CONFIG = "config.yaml"
TRAJECTORIES = "trajectories"
EVAL = "eval.json"
EVALUATED = "evaluated.json"
"""Written by `agentgrpo eval`: the weights that were compared."""
_TRAIN = re.compile(r"train-(\d{6,})")
_EVAL = re.compile(r"eval-(.+)-(greedy|sampled)")
_CHECKPOINT = re.compile(r"step-(\d{6,})")
_CLOCKS = ".timings.jsonl"
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFile:
    """One file of episodes. A file of training has a `step`; a file of an evaluation has `policy` ("start", "end", or a
    baseline's name) and `mode`."""

    path: Path
    step: int | None = None
    policy: str = "train"
    mode: str = "sampled"

    @property
    def name(self) -> str:
        """The name for --file: train-000012, eval-end-greedy."""
        return self.path.stem

    @property
    def clocks_path(self) -> Path:
        return self.path.with_suffix(_CLOCKS)

    def clocks(self) -> dict[str, dict[str, Any]]:
        """Episode id -> its seconds by stage, and under "tools" the seconds of each call; {} if no file was kept.
        Raises DataError."""
        path = self.clocks_path
        with damaged(path):
            rows = [read_json(line) for line in path.read_text().splitlines()] if path.is_file() else []
            return {row["id"]: row for row in rows}


def checkpoint_in(folder: Path) -> Path:
    """The newest checkpoint of the run in `folder`, or `folder` itself if it is not a run. Raises ConfigError for a run
    without a checkpoint."""
    if not (folder / CONFIG).is_file() or (folder / "config.json").is_file():
        return folder
    found = RunDir(folder).checkpoints()
    if not found:
        raise ConfigError(f"{folder} has no checkpoint: it was stopped before the first, or run.checkpoint_every=0")
    return [*found.values()][-1]


class RunDir:
    """Raises ConfigError if `path` holds no run that has begun, and DataError for files that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            siblings = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
            near = did_you_mean(path.name, siblings)
            raise ConfigError(f"{path} does not exist; give the directory of a run, such as runs/x.{near}")
        refuse_special_files(path)
        if not ((path / CONFIG).is_file() or (path / TRAJECTORIES).is_dir()):
            raise ConfigError(f"{path} has no trajectories; give the directory of a run that has begun, such as runs/x")

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The composed configuration, interpolations unresolved; {} if only trajectories were kept."""
        if not (self.path / CONFIG).is_file():
            return {}
        try:
            with damaged(self.path / CONFIG):
                found = yaml.safe_load((self.path / CONFIG).read_bytes())
        except yaml.YAMLError as e:
            raise DataError(f"{self.path / CONFIG}: {e}") from e
        refuse_endless(found, self.path / CONFIG)
        if not isinstance(found, dict):
            raise DataError(f"{self.path / CONFIG}: not a configuration")
        return config_of_today(found)

    @property
    def environment(self) -> Mapping[str, Any]:
        """{"determinism","probed","versions","machine"} and, about the policy's environment, {"environment","figures"};
        {} until it is known."""
        return self._json("environment.json") or {}

    @property
    def evaluation(self) -> Mapping[str, Any] | None:
        """eval.json, once the run (or `agentgrpo eval`) has written it. Raises DataError if it is damaged."""
        found = self._json(EVAL)
        is_of_today = (self.path / SEALS).is_file()  # earlier versions sealed and signed nothing
        if found is not None and is_of_today and not is_whole(found):
            raise DataError(f"{self.path / EVAL} is damaged: its content does not match its sha256; evaluate again")
        return found

    @property
    def evaluated(self) -> Mapping[str, Any]:
        """{"ckpt","baseline"}: absolute paths, null = the start weights; {} unless written by `agentgrpo eval`."""
        return self._json(EVALUATED) or {}

    @property
    def stopped(self) -> Mapping[str, Any] | None:
        """stopped.json; None if the run has finished, is in progress, or was killed."""
        return self._json(STOPPED)

    def checkpoint_state(self) -> Mapping[str, Any]:
        """The run's state in the newest readable checkpoint: start, fingerprints, versions, ...; {} without one."""
        for folder in reversed(self.checkpoints().values()):
            try:
                state = read_json((folder / "trainer" / "state.json").read_bytes())["state"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # damaged, or being written
            if isinstance(state, dict):
                return state
        return {}

    def problems(self) -> list[str]:
        """A sentence for every file that has changed since it was written (see records.seals), and for every log that
        has lost rows since the newest checkpoint."""
        logs = self.checkpoint_state().get("logs") or []
        try:
            lost = [Seal.read(row).problem(self.path, grows=True) for row in logs]
        except (ValueError, TypeError) as e:
            lost = [f"{self.path}: the newest checkpoint is damaged: its logs: {e}"]
        return [*problems(self.path), *filter(None, lost)]

    def metrics(self) -> list[dict[str, Any]]:
        """A row per step."""
        return self._rows(METRICS)

    def timings(self) -> list[dict[str, Any]]:
        return self._rows(TIMINGS)

    def profile(self) -> list[dict[str, Any]]:
        """Seconds by stage, a row per step; [] unless run.profile=true."""
        return self._rows(PROFILE)

    def trajectory_files(self) -> list[TrajectoryFile]:
        """Files of training by step, then files of evaluations by name; files with other names are ignored."""
        paths = sorted(p for p in (self.path / TRAJECTORIES).glob("*.jsonl") if not p.name.endswith(_CLOCKS))
        files = [file for path in paths if (file := _file(path)) is not None]
        return sorted(files, key=lambda f: (f.step is None, f.step or 0))

    def trajectory_file(self, *, name: str | None = None, step: str | None = None) -> TrajectoryFile:
        """Return the file with this name or of this step. Without either, return the greedy evaluation of the end
        weights, or else the last step's file. Raises ConfigError if the run has no such file."""
        if name is not None and step is not None:
            raise ConfigError(f"--file {name} and --step {step}: give one of them")
        files = self.trajectory_files()
        if not files:
            raise ConfigError(f"{self.path} has no trajectories yet; wait for the first step, or give another run")
        if step is not None:
            if not (step.isascii() and step.isdigit()):
                raise ConfigError(f"--step {step} is not the number of a step; give one, such as 0")
            name = f"train-{int(step):06d}"
        known = {file.name: file for file in files}
        steps = [file for file in files if file.step is not None]
        if name is None:
            return known.get("eval-end-greedy") or (steps or files)[-1]
        found = known.get(name.removesuffix(".jsonl"))
        if found is None:
            some = [*known][:_SHOWN] + ["..."] * (len(known) > _SHOWN)
            near = did_you_mean(name, known)
            if step is not None:
                there = _range([file.step for file in steps if file.step is not None])
                raise ConfigError(f"--step {step}: {self.path / TRAJECTORIES} {there}")
            raise ConfigError(f"{self.path / TRAJECTORIES} has no {name}; it has {', '.join(some)}.{near}")
        return found

    def episodes(self, name: str | None = None) -> Iterator[TrajectoryRecord]:
        """The episodes of training in order of their steps, or of the file with that name, such as eval-end-greedy.
        Raises ConfigError if there is no such file, and DataError."""
        trained = [file for file in self.trajectory_files() if file.step is not None]
        for file in trained if name is None else [self.trajectory_file(name=name)]:
            yield from read_trajectories(file.path)

    def checkpoints(self) -> dict[int, Path]:
        """Completed steps -> model folder, oldest first; the folders may be damaged."""
        folder = self.path / "checkpoints"
        found = {
            int(match[1]): path
            for path in (folder.iterdir() if folder.is_dir() else ())
            if (match := _CHECKPOINT.fullmatch(path.name))
        }
        return dict(sorted(found.items()))

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.is_file():
            return None
        with damaged(path):
            found = read_json(path.read_bytes())
        if not isinstance(found, dict):
            raise DataError(f"{path}: a {type(found).__name__} instead of an object")
        return found

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return read_metrics(self.path / name, torn="left out")


def _range(steps: Sequence[int]) -> str:
    if not steps:
        return "has no step of training; see what there is with --list"
    between = f"steps {steps[0]}-{steps[-1]}" if len(steps) > 1 else f"step {steps[0]} alone"
    gaps = "" if len(steps) == steps[-1] - steps[0] + 1 else f", {len(steps)} of them"
    return f"has {between}{gaps}; give one of these"


def _file(path: Path) -> TrajectoryFile | None:
    if match := _TRAIN.fullmatch(path.stem):
        return TrajectoryFile(path=path, step=int(match[1]))
    if match := _EVAL.fullmatch(path.stem):
        return TrajectoryFile(path=path, policy=match[1], mode=match[2])
    return None
