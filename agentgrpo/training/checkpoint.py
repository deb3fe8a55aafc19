"""Checkpoints: written completely or not at all, verified before use; the last one is never deleted.

    checkpoints/step-000040/            40 completed steps
        config.json, model.safetensors  the output of `write_model`: a folder that transformers can load
        trainer/optimizer.safetensors   the tensors of `save`
        trainer/state.json              the JSON state of `save`, the step and the score
        manifest.json                   size and SHA-256 of every file, written last

There is no pointer to the latest or best checkpoint: they are found by reading the directory. No pickle is written or
read.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agentgrpo.core import durable
from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.core.untrusted import damaged, read_json
from agentgrpo.records.metrics import PROFILE, TIMINGS, clock_offset
from agentgrpo.records.seals import Seal

TENSORS = "trainer/optimizer.safetensors"
STATE = "trainer/state.json"
_START = {"folder": "", "sha256": ""}
_TEXTS = ("start", "fingerprints", "versions")
_OBJECTS = (*_TEXTS, "config", "guards", "carried")
_NAME = re.compile(r"step-\d{6,}")
_TRAJECTORIES = re.compile(r"(.+)-(\d{6,})\.")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A verified checkpoint. `path` is the model folder; tensors are on the CPU."""

    step: int
    path: Path
    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run. Except for `candidates`, `load` and `best`, only the process that holds the RunLock
    may call its methods.

    It keeps the newest `keep_last` checkpoints (at least 1); with `keep_best` also the one with the highest score (the
    newest of equals; checkpoints without a score do not compete); and those of the steps in the newest one's
    `state["needs"]`.
    """

    def __init__(self, *, run_dir: Path, keep_last: int = 2, keep_best: bool = True) -> None:
        if keep_last < 1:
            raise ConfigError(f"keep_last={keep_last}: at least 1 checkpoint must be kept (run.keep_last)")
        self.run_dir = run_dir
        self.keep_last = keep_last
        self.keep_best = keep_best
        self._directory = run_dir / "checkpoints"

    def preflight(self, checkpoint_bytes: int) -> None:
        """Raises StorageError unless there is room for three checkpoints of this size: the one being kept, the one
        being written, and a margin."""
        durable.ensure_directory(self._directory)
        durable.require_free_space(self._directory, 3 * checkpoint_bytes)

    def save(
        self,
        step: int,
        *,
        write_model: Callable[[Path], None],
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        score: float | None = None,
    ) -> Path:
        """Write, read back, verify, then prune. `state` must be plain JSON (lists, str keys, finite numbers), so that
        it is read back equal; `state["logs"]` (see records.seals) ties the checkpoint to the logs. Replaces a
        checkpoint of the same step. Raises StorageError and then leaves the older checkpoints untouched."""
        text = json.dumps(
            {"score": score, "state": dict(state), "step": step}, allow_nan=False, indent=1, sort_keys=True
        )
        if changed := [k for k, v in json.loads(text)["state"].items() if v != state.get(k)]:
            raise TypeError(
                f"checkpoint state {changed} would not come back equal; give lists, not tuples, and str keys"
            )
        durable.sweep_leftovers(self._directory)
        path = self.path(step)
        with durable.atomic_directory(path) as folder:
            try:
                write_model(folder)
                (folder / TENSORS).parent.mkdir()
                save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, folder / TENSORS)
            except SafetensorError as e:  # not an OSError, even if the disk is full
                raise durable.storage_error(path, 0, e) from e
            (folder / STATE).write_text(text + "\n", encoding="utf-8")
        self.prune()
        return path

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of `step`, whether or not it exists."""
        return self._directory / f"step-{step:06d}"

    def candidates(self) -> list[Path]:
        """Return every directory with the name of a checkpoint, newest first, valid or not."""
        if not self._directory.is_dir():
            return []
        found = [p for p in self._directory.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()]
        return sorted(found, key=_step_of, reverse=True)

    def load(self, path: Path) -> LoadedCheckpoint:
        """Verify every byte, then load. Raises CheckpointError naming what is wrong."""
        if missing := sorted({STATE, TENSORS} - durable.verify_directory(path)):
            raise CheckpointError(f"{path}: a model folder without {missing[0]}; it can be evaluated, not resumed")
        row = read_state(path)
        with damaged(path / TENSORS, CheckpointError):
            return LoadedCheckpoint(step=row["step"], path=path, tensors=load_file(path / TENSORS), state=row["state"])

    def latest(self, *, strict: bool = False) -> LoadedCheckpoint:
        """Return the newest checkpoint that is complete and whose logs still have the recorded content. An invalid
        checkpoint is skipped with a warning, or with `strict` refused. Raises CheckpointError if no valid one is left:
        a run never silently restarts."""
        durable.sweep_leftovers(self._directory)
        for path in self.candidates():
            try:
                checkpoint = self.load(path)
                for log in _logs(checkpoint):
                    if (problem := log.problem(self.run_dir, grows=True)) is not None:
                        raise CheckpointError(f"{problem}, when this checkpoint was taken")
                return checkpoint
            except CheckpointError as e:
                if strict:
                    raise
                _log.warning("checkpoint %s is not valid, trying the one before it: %s", path.name, e)
        raise CheckpointError(
            f"{self._directory} holds no valid checkpoint; restore one from a copy, or start anew in another run.dir"
        )

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score, or None if no checkpoint has a score. Only the score is
        verified."""
        scores = {path: score for path in self.candidates() if (score := self._score(path)) is not None}
        return max(scores, key=scores.__getitem__, default=None)

    def _score(self, path: Path) -> float | None:
        try:
            durable.verify_directory(path, only=(STATE,))
        except CheckpointError:
            return None  # a damaged checkpoint cannot be the best
        score = read_state(path)["score"]
        return None if score is None else float(score)

    def prune(self) -> None:
        """Delete the checkpoints that are not kept. The newest one is read and verified first; a damaged one stops the
        deletion."""
        found = self.candidates()
        if not found:
            return
        durable.verify_directory(found[0])
        needs = read_state(found[0])["state"].get("needs", [])
        kept = {*found[: self.keep_last], *map(self.path, needs), *([self.best()] if self.keep_best else [])}
        for path in found:
            if path not in kept:
                durable.remove_directory(path)

    def rewind(self, checkpoint: LoadedCheckpoint) -> None:
        """Return the run directory to its state at `checkpoint`, so that every later step is recorded exactly once.

        Logs are truncated to their recorded lengths. Clock rows and trajectories of the checkpoint's step and later
        ones, evaluations of later steps, and newer checkpoints move to `orphans/`. If it crashes midway, a second call
        gives the same result.
        """
        orphans, trajectories = self.run_dir / "orphans", self.run_dir / "trajectories"
        for directory in (self.run_dir, trajectories, orphans):
            durable.sweep_leftovers(directory)
        for path in self.candidates():
            if _step_of(path) > checkpoint.step:
                durable.set_aside(path, orphans)
        for log in _logs(checkpoint):
            durable.truncate_to(self.run_dir / log.file, log.bytes, orphans)
        for clocks in (self.run_dir / TIMINGS, self.run_dir / PROFILE):
            durable.truncate_to(clocks, clock_offset(clocks, checkpoint.step), orphans)
        for path in sorted(trajectories.glob("*.jsonl")):
            match = _TRAJECTORIES.match(path.name)
            if match and int(match[2]) >= checkpoint.step + (match[1] != "train"):
                durable.set_aside(path, orphans)
        self.prune()  # remove checkpoints left by a crash between writing and pruning


def read_state(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's STATE: {"step","score","state"}. Raises CheckpointError for content that
    `save` cannot have written."""
    with damaged(path / STATE, CheckpointError):
        row: dict[str, Any] = read_json((path / STATE).read_bytes())
        state, score = row["state"], row["score"]
        for key in _OBJECTS:
            if not isinstance(state.get(key, {}), dict):
                raise ValueError(f"{key} is not an object")
        texts = [text for key in _TEXTS for text in state.get(key, {}).values()]
        if not all(isinstance(text, str) for text in texts) or state.get("start", _START).keys() != _START.keys():
            raise ValueError(f"{', '.join(_TEXTS)}: invalid entries")
        counts = [row["step"], *state.get("needs", [])]
        if not all(isinstance(n, int) for n in counts) or not isinstance(score, int | float | None):
            raise ValueError("the step, a needed step or the score is not a number")
    return row


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _logs(checkpoint: LoadedCheckpoint) -> list[Seal]:
    """Return the checkpoint's log seals. Raises CheckpointError, because a checkpoint from elsewhere must not truncate
    files outside its run."""
    if "logs" not in checkpoint.state:
        raise CheckpointError(f"{checkpoint.path} is of an earlier version; evaluate it, or go on with that version")
    try:
        found = [Seal.read(row) for row in checkpoint.state["logs"]]
    except (ValueError, TypeError) as e:
        raise CheckpointError(f"{checkpoint.path}: its logs: {e}") from e
    if odd := next((log.file for log in found if "/" in log.file), None):
        raise CheckpointError(f"{checkpoint.path}: the log {odd!r} is not in the run directory")
    return found
