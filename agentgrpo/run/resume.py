"""Resuming a run, and its run directory: the checkpoint to continue from, a kept result, restoring the directory after
a refusal, and a note of why the run stopped."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from agentgrpo.config.admission import needed_overrides
from agentgrpo.config.build import user_code
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.commands import shell_line
from agentgrpo.core.durable import set_aside, write_atomic
from agentgrpo.core.errors import ConfigError, DataError, StorageError
from agentgrpo.core.interrupts import is_of_interrupt
from agentgrpo.records.card import flatten
from agentgrpo.records.metrics import METRICS, TIMINGS
from agentgrpo.records.run_dir import CONFIG, EVAL, EVALUATED, TRAJECTORIES, RunDir, forget_stop, write_stop
from agentgrpo.records.seals import SEALS, problems
from agentgrpo.records.trajectories import read_summary
from agentgrpo.run.cpu_seconds import is_trained, trained_cpu_s
from agentgrpo.run.examine import scorecards_path
from agentgrpo.run.parts import Progress
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.process_group import ProcessGroup, agree

_log = logging.getLogger(__name__)

# --- The checkpoint that a run continues from.


def newest_checkpoint(store: CheckpointStore, world: ProcessGroup) -> LoadedCheckpoint:
    """Return the newest valid checkpoint: the first process finds it, and the others load the same one."""
    found = agree(world, lambda: store.latest() if world.rank == 0 else None)
    path = world.gather(found.path if found else Path())[0]
    return agree(world, lambda: found or store.load(path))


def rewind(run: RunSettings, store: CheckpointStore, checkpoint: LoadedCheckpoint, snapshot: str) -> bool:
    """Restore the run directory to its state at `checkpoint`, with the new configuration; return whether an evaluation
    was discarded. Damaged files of earlier steps only cause a warning: nothing is computed from them."""
    run_dir = Path(run.dir)
    store.rewind(checkpoint)
    for problem in problems(run_dir):
        _log.warning("%s", problem)
    had_result = give_up_result(run, checkpoint.step)
    keep_configuration(run_dir, snapshot, until=f"config-until-{checkpoint.step:06d}.yaml")
    return had_result


def keep_configuration(run_dir: Path, snapshot: str, *, until: str | None = None) -> None:
    """Save the configuration that the run continues with. If the file is equal, it stays; otherwise the old content is
    kept as `until`, and its line "composed from" is carried over."""
    path = run_dir / CONFIG
    before = path.read_text("utf-8")
    if yaml.safe_load(before) == yaml.safe_load(snapshot):
        return
    if until is not None:
        write_atomic(run_dir / until, before.encode())
    composed = [line for line in before.splitlines(keepends=True) if line.startswith("# composed from ")]
    head, *rest = snapshot.splitlines(keepends=True)
    kept = composed[:1] if not any(line.startswith("# composed from ") for line in rest) else []
    write_atomic(path, "".join([head, *kept, *rest]).encode())


# --- A run that was trained and evaluated to its end: resuming it returns its result at once.

_CHANGES_NOTHING = ("run.", "guards.")
"""Prefixes of settings that do not change a finished run's result, except for _CHANGES_RESULTS."""
_CHANGES_RESULTS = ("run.eval.", "run.seed")
_ADDS = "run.eval.baselines"
"""Setting that only adds to an existing result."""


def kept_result(run: RunSettings, step: int, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return eval.json's content if it covers the weights after the last step, `step`, with the settings in `config`;
    otherwise None, because work is left."""
    run_dir = RunDir(Path(run.dir))
    if not (run.final_eval and is_trained(run, step, trained_cpu_s(run_dir.path))):
        return None
    try:
        result = run_dir.evaluation
        end = [file.path for file in run_dir.trajectory_files() if (file.policy, file.mode) == ("end", "sampled")]
        if result is None or "figures" not in result or not end or read_summary(end[0]).get("step") != step:
            return None
        before, now = flatten(run_dir.config), flatten(config)
    except DataError:  # damaged, or of another version
        return None
    differ = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)} - {_ADDS}
    is_same = all(key.startswith(_CHANGES_NOTHING) and not key.startswith(_CHANGES_RESULTS) for key in differ)
    return dict(result) if is_same else None


def give_up_result(run: RunSettings, step: int) -> bool:
    """Prepare for continuing after `step` steps. If there will be another evaluation or other weights, move the
    existing result and its episodes to orphans/, so that it is never taken for the final one. Return whether a result
    existed."""
    run_dir = Path(run.dir)
    is_over = is_trained(run, step, trained_cpu_s(run_dir))
    if not run.final_eval and is_over:  # no later weights, so the result stays valid
        return False
    had_result = (run_dir / EVAL).is_file()
    set_result_aside(run_dir)
    if not is_over:
        cards = [path for path in (scorecards_path(run_dir, "end"),) if path.is_file()]
        for path in [*cards, *sorted((run_dir / TRAJECTORIES).glob("eval-end-*.jsonl"))]:  # with their clocks
            set_aside(path, run_dir / "orphans")
    return had_result


def set_result_aside(run_dir: Path) -> None:
    """Move an earlier evaluation in this directory to orphans/: the new evaluation may cover other weights."""
    if (run_dir / EVAL).is_file():
        set_aside(run_dir / EVAL, run_dir / "orphans")


def next_commands(run: RunSettings, step: int) -> dict[str, str]:
    """Return follow-up command lines for a run that is over after `step` steps: view it, and evaluate its last
    checkpoint."""
    commands = {"next": shell_line("view", run.dir)}
    last = CheckpointStore(run_dir=Path(run.dir)).path(step)
    if last.is_dir():
        line = [shell_line("eval", "--ckpt", str(last)), *_needed(RunDir(Path(run.dir)).config, run.dir)]
        commands["or"] = " ".join(line)
    return commands


def can_go_on(run: RunSettings) -> bool:
    """Return whether a checkpoint to resume from exists, or will exist because no step is done yet."""
    run_dir = Path(run.dir)
    will_have_one = bool(run.checkpoint_every) and not (run_dir / METRICS).exists()
    return will_have_one or bool(CheckpointStore(run_dir=run_dir).candidates())


def way_on(snapshot: Mapping[str, Any], run: RunSettings) -> str:
    """Return the advice for continuing a stopped run, or for starting again. snapshot: its configuration, with
    unresolved interpolations."""
    if not can_go_on(run):
        return "it keeps no checkpoint (run.checkpoint_every=0), so begin again in another run.dir"
    return f"go on with: {' '.join([shell_line('resume', run.dir), *_needed(snapshot, run.dir)])}"


def _needed(snapshot: Mapping[str, Any], run_dir: str) -> list[str]:
    return needed_overrides(snapshot, user_code(snapshot), Path(run_dir))


# --- A run that is refused, or interrupted before it has begun, leaves its directory unchanged.

LOCK = "run.lock"
OURS = frozenset({CONFIG, EVALUATED, LOCK})
"""Files that a run writes before it knows whether it can begin."""
_FIRST = ("environment.json", "checkpoints", "sync", "tensorboard", "trackers.json", SEALS, TIMINGS)
BEFORE_THE_FIRST_EPISODE = OURS.union(_FIRST)
"""Files that may exist for a run that has not begun."""


class RestoreOnRefusal:
    """A context manager around the run, constructed before the run directory exists and entered once it is locked.
    After a refusal (ConfigError, DataError) or Ctrl-C before the first episode, it deletes the new files, with the
    directories that were made for them. Older files stay, with OURS restored; once the run has written more than
    BEFORE_THE_FIRST_EPISODE, everything stays. is_ours: the existing directory has just been made for this run."""

    def __init__(self, run_dir: Path, *, is_ours: bool) -> None:
        self._run_dir = run_dir
        self._locks = LOCK not in _entries(run_dir)
        missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        self._folders = missing or ([run_dir] if is_ours and not _entries(run_dir) else [])

    def __enter__(self) -> RestoreOnRefusal:
        self._before = _entries(self._run_dir)
        self._texts = {name: text for name in (CONFIG, EVALUATED) if (text := _text(self._run_dir / name)) is not None}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not (isinstance(error, ConfigError | DataError) or is_of_interrupt(error)):
            return
        with suppress(OSError, StorageError):  # an error while tidying must not hide why the run was refused
            before, now = self._before, _entries(self._run_dir)
            is_changed = any(now.get(name) != at for name, at in before.items() if name not in OURS)
            if is_changed or not now.keys() - before.keys() <= BEFORE_THE_FIRST_EPISODE:
                return
            for name, text in self._texts.items():
                if _text(self._run_dir / name) not in (None, text):
                    write_atomic(self._run_dir / name, text)
            for name in now.keys() - (before.keys() - ({LOCK} if self._locks else set())):
                path = self._run_dir / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for folder in self._folders:
                folder.rmdir()  # fails if the folder is not empty


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _entries(folder: Path) -> dict[str, int]:
    """Return name -> time of last change; for a folder, when an entry was last added or removed."""
    return {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()} if folder.is_dir() else {}


# --- A run that stops early leaves a note of why, for later readers.


@contextmanager
def noting_stop(
    run_dir: Path, world: ProcessGroup, progress: Progress | None = None, max_steps: int | None = None
) -> Iterator[None]:
    """A context around the work: it deletes the note of an earlier stop, and the first process writes down an error
    that ends the work. A refusal of a run that has not begun is not noted: that leaves nothing behind (run.resume).
    progress: None = an evaluation."""
    if world.rank:
        yield
        return
    forget_stop(run_dir)
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConfigError | DataError) or (run_dir / METRICS).exists():
            with suppress(OSError, StorageError):  # a full disk, say: it must not hide why the run ends
                write_stop(run_dir, error, step=None if progress is None else progress.step, max_steps=max_steps)
        raise
