"""A run that goes on, and what it leaves in its directory for that: the checkpoint it goes back to, a result that is
kept, a directory as it was before a refusal, word of why it stopped."""

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

# --- Where a run goes on.


def newest_checkpoint(store: CheckpointStore, world: ProcessGroup) -> LoadedCheckpoint:
    """The newest valid checkpoint: the first process looks for it, and the others read the same."""
    found = agree(world, lambda: store.latest() if world.rank == 0 else None)
    path = world.gather(found.path if found else Path())[0]
    return agree(world, lambda: found or store.load(path))


def rewind(run: RunSettings, store: CheckpointStore, checkpoint: LoadedCheckpoint, snapshot: str) -> bool:
    """The run directory as it was at `checkpoint`, with the configuration that the run goes on with; whether it had an
    evaluation that is given up. Of damaged files of earlier steps there is a warning: nothing is computed from them."""
    run_dir = Path(run.dir)
    store.rewind(checkpoint)
    for problem in problems(run_dir):
        _log.warning("%s", problem)
    had_result = give_up_result(run, checkpoint.step)
    keep_configuration(run_dir, snapshot, until=f"config-until-{checkpoint.step:06d}.yaml")
    return had_result


def keep_configuration(run_dir: Path, snapshot: str, *, until: str | None = None) -> None:
    """The configuration that the run goes on with. The file stays as it is where that says the same; else what it said
    is kept as `until`, and of which presets the run was composed is said on."""
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


# --- A run that has been trained and evaluated to its end: whoever resumes it gets what it came to, at once.

_CHANGES_NOTHING = ("run.", "guards.")
"""Of a run that is over; but for _CHANGES_RESULTS."""
_CHANGES_RESULTS = ("run.eval.", "run.seed")
_ADDS = "run.eval.baselines"
"""Changes no result that there is."""


def kept_result(run: RunSettings, step: int, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """eval.json's content where it is of the weights after `step` steps, the last, and of the settings in `config`;
    None where something is left to do."""
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
    """The run goes on after `step` steps. Where there will be another evaluation, or other weights, what there is goes
    to orphans/ with its episodes, so that it is never taken for that of the end; whether there was one."""
    run_dir = Path(run.dir)
    is_over = is_trained(run, step, trained_cpu_s(run_dir))
    if not run.final_eval and is_over:  # nothing comes that it would not be of
        return False
    had_result = (run_dir / EVAL).is_file()
    set_result_aside(run_dir)
    if not is_over:
        cards = [path for path in (scorecards_path(run_dir, "end"),) if path.is_file()]
        for path in [*cards, *sorted((run_dir / TRAJECTORIES).glob("eval-end-*.jsonl"))]:  # with their clocks
            set_aside(path, run_dir / "orphans")
    return had_result


def set_result_aside(run_dir: Path) -> None:
    """What `agentgrpo eval` found in this directory before: it is not of what is evaluated now."""
    if (run_dir / EVAL).is_file():
        set_aside(run_dir / EVAL, run_dir / "orphans")


def next_commands(run: RunSettings, step: int) -> dict[str, str]:
    """What one may do with a run that is over after `step` steps -> the command line: look at it, and evaluate its last
    checkpoint."""
    commands = {"next": shell_line("view", run.dir)}
    last = CheckpointStore(run_dir=Path(run.dir)).path(step)
    if last.is_dir():
        line = [shell_line("eval", "--ckpt", str(last)), *_needed(RunDir(Path(run.dir)).config, run.dir)]
        commands["or"] = " ".join(line)
    return commands


def can_go_on(run: RunSettings) -> bool:
    """Whether there is a checkpoint to go on from, or none is needed: no step is done yet, and there will be one."""
    run_dir = Path(run.dir)
    will_have_one = bool(run.checkpoint_every) and not (run_dir / METRICS).exists()
    return will_have_one or bool(CheckpointStore(run_dir=run_dir).candidates())


def way_on(snapshot: Mapping[str, Any], run: RunSettings) -> str:
    """How to go on with a run that is stopped, or to begin it again. snapshot: its configuration, interpolations
    unresolved."""
    if not can_go_on(run):
        return "it keeps no checkpoint (run.checkpoint_every=0), so begin again in another run.dir"
    return f"go on with: {' '.join([shell_line('resume', run.dir), *_needed(snapshot, run.dir)])}"


def _needed(snapshot: Mapping[str, Any], run_dir: str) -> list[str]:
    return needed_overrides(snapshot, user_code(snapshot), Path(run_dir))


# --- A run that is refused, or interrupted before it has begun, leaves its directory as it found it.

LOCK = "run.lock"
OURS = frozenset({CONFIG, EVALUATED, LOCK})
"""What a run writes before it knows whether it can begin."""
_FIRST = ("environment.json", "checkpoints", "sync", "tensorboard", "trackers.json", SEALS, TIMINGS)
BEFORE_THE_FIRST_EPISODE = OURS.union(_FIRST)
"""What there may be of a run that has not begun."""


class RestoreOnRefusal:
    """A context manager around the run, made before its directory is and entered once that is locked: where it is left
    by a refusal (ConfigError, DataError) or Ctrl-C before its first episode, whatever has come since goes again, with
    the directories that were made for it. What was there before stays, OURS as they were, and so does everything once
    there is more. is_ours: the directory has just been made for this run, though it is there already."""

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
        with suppress(OSError, StorageError):  # what cannot be tidied is no reason to hide why the run was refused
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
                folder.rmdir()  # never one that has something in it


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _entries(folder: Path) -> dict[str, int]:
    """Name -> when it was last changed: for a folder, when something last came into it or went."""
    return {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()} if folder.is_dir() else {}


# --- A run that ends before its end leaves word of why, for those who look at it later.


@contextmanager
def noting_stop(
    run_dir: Path, world: ProcessGroup, progress: Progress | None = None, max_steps: int | None = None
) -> Iterator[None]:
    """Around the work: what there was of an earlier stop goes, and an error that ends the work is written down by the
    first process. Not one that refuses a run which has not begun: that leaves nothing behind (run.resume).
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
