"""Baselines beside a run (run.eval.baselines): other training methods from its start weights, with equal CPU seconds.

    RUN, evaluated --cpu_budget--> RUN/baselines/NAME, trained and evaluated --beside--> eval.json of RUN

A baseline is a separate run, which differs from RUN in its training data and its end. It shares the run's evaluation
of the start weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.config.compose import to_yaml
from agentgrpo.core.durable import RunLock, ensure_directory, write_atomic
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.outside import run_loop
from agentgrpo.environments.figures import Figures
from agentgrpo.records.run_dir import CONFIG, EVAL, TRAJECTORIES, RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.records.seals import signed
from agentgrpo.run.assembly import refuse_unfit, session_of
from agentgrpo.run.build import run_of
from agentgrpo.run.cpu_seconds import CPU, trained_cpu_s
from agentgrpo.run.diagnostics import Watch
from agentgrpo.run.drift import refuse_drift
from agentgrpo.run.evaluate import measured
from agentgrpo.run.examine import MODES, read_scorecards, scorecards_path
from agentgrpo.run.parts import Progress
from agentgrpo.run.resume import kept_result, newest_checkpoint, noting_stop, rewind, way_on
from agentgrpo.run.session import run_session
from agentgrpo.run.settings import Settings, settings_of
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.training.process_group import ProcessGroup

BASELINES: Mapping[str, Mapping[str, str]] = {
    "sft": {"demonstrations": "oracle", "algorithm": "sft", "guards": "sft"},
    "rejection_sampling": {"demonstrations": "none", "algorithm": "raft"},
}
"""Name -> the presets in which the baseline differs from the run."""
FOLDER = "baselines"
"""Folder within the run directory that holds the baselines' run directories."""
_NO_END = 1_000_000
"""run.max_steps of a baseline: too many to be reached before its CPU seconds are spent."""
_ADAPTER_LR = 1e-4
"""Least learning rate for supervised training of an adapter; whole weights use optimizer=sft's (docs/supervised.md)."""

ReadPreset = Callable[[str, str], Mapping[str, Any]]
"""(group, preset) -> the preset's content."""


class Baselines:
    """The baselines of a run, constructed before the run begins so that impossible settings are refused at once."""

    def __init__(self, settings: Settings, snapshot: str, world: ProcessGroup, read: ReadPreset) -> None:
        """snapshot: the run's configuration, interpolations unresolved. Raises ConfigError."""
        run, asked = settings.run, "run.eval.baselines=true"
        if not run.final_eval:
            raise ConfigError(f"{asked} needs the run's own evaluation, and run.final_eval=false; drop one of the two")
        if not run.checkpoint_every:
            raise ConfigError(f"{asked} with run.checkpoint_every=0: a stopped run could not resume; set it above 0")
        if world.size > 1:
            raise ConfigError(f"{asked} with {world.size} processes; 1 is allowed: drop the baselines, or the launcher")
        self._settings, self._snapshot, self._world = settings, yaml.safe_load(snapshot), world
        self._chosen = {
            name: {group: read(group, preset) for group, preset in presets.items()}
            for name, presets in BASELINES.items()
        }
        self._sft_lr = float(read("optimizer", "sft")["lr"])
        for name in BASELINES:
            refuse_unfit(settings_of(self._of(name, settings.tree, cpu_s=1.0)))

    def train(self, step: int, *, screen: Screen, watch: Watch) -> dict[str, Any]:
        """Train and evaluate each missing baseline in turn, add it to eval.json, and return eval.json's content. The
        caller must have freed the run's own model. step: completed steps of the run. Raises Preempted after a signal,
        and DataError."""
        run, run_dir = self._settings.run, Path(self._settings.run.dir)
        result = dict(RunDir(run_dir).evaluation or {})
        lacking = lacking_baselines(result)
        if not lacking:
            return result
        if "oracle" not in result:
            screen.line(f"note: task={self._settings.task.name} demonstrates nothing: there is no baseline sft")
        go_on = way_on(self._snapshot, run)
        with noting_stop(run_dir, self._world, Progress(step=step), run.max_steps):
            cpu_s = cpu_budget(run_dir)
            for name in lacking:
                gc.collect()  # a model's modules may form reference cycles
                settings = settings_of(self._of(name, self._settings.tree, cpu_s=cpu_s))
                snapshot = self._of(name, self._snapshot, cpu_s=cpu_s)
                _train(name, settings, snapshot, self._world, screen, watch, go_on=go_on)
                result = beside(run_dir, name, result)
        return result

    def _of(self, name: str, tree: Mapping[str, Any], *, cpu_s: float) -> dict[str, Any]:
        """Derive the configuration of a baseline from the run's."""
        made = deepcopy(dict(tree) | self._chosen[name])
        made["optimizer"]["final_fraction"] = 1.0  # a schedule needs an end, and the last step is not known
        if name == "rejection_sampling":
            made["algorithm"]["advantage_args"] = {"by": "grade"}  # the reward would select cheap answers
        if name == "sft":
            made["rollout"] |= {"refill_rounds": 0, "curriculum": "none"}
            is_adapter = (self._settings.tree["model"].get("lora") or {}).get("rank")
            least = _ADAPTER_LR if is_adapter else self._sft_lr
            made["optimizer"]["lr"] = max(float(self._settings.tree["optimizer"]["lr"] or 0), least)
        run_dir = Path(self._settings.run.dir, FOLDER, name)
        made["run"] |= {"dir": str(run_dir), "max_steps": _NO_END, "max_cpu_s": cpu_s, "eval_every": 0}
        made["run"]["eval"]["baselines"] = False
        return made


def cpu_budget(run_dir: Path) -> float:
    """Return the CPU seconds that a run has trained for. Raises DataError if a step's CPU seconds were not recorded."""
    run = RunDir(run_dir)
    clocked = {row["step"] for row in run.timings() if row.get(CPU) is not None}
    if lacking := [row["step"] for row in run.metrics() if row["step"] not in clocked]:
        raise DataError(
            f"{run_dir}: timings.jsonl has no CPU seconds of step {lacking[0]}, so the budget of the baselines is "
            "unknown; train a new run with run.eval.baselines=true"
        )
    return trained_cpu_s(run_dir)


def lacking_baselines(result: Mapping[str, Any]) -> list[str]:
    """Return the baselines that eval.json still lacks. `sft` needs an oracle, so a task set that demonstrates."""
    names = [name for name in BASELINES if name != "sft" or "oracle" in result]
    return [name for name in names if name not in result.get("baselines", {})]


def _train(
    name: str,
    settings: Settings,
    tree: Mapping[str, Any],
    world: ProcessGroup,
    screen: Screen,
    watch: Watch,
    *,
    go_on: str,
) -> None:
    """Train and evaluate a baseline in its directory, or continue where it stopped; finished work is kept. tree: its
    configuration with unresolved interpolations. go_on: how to resume the parent run (resume.way_on)."""
    run = settings.run
    run_dir, snapshot = Path(run.dir), to_yaml(tree, {})
    ensure_directory(run_dir)
    with RunLock(run_dir):
        store = CheckpointStore(run_dir=run_dir, keep_last=run.keep_last, keep_best=run.keep_best)
        checkpoint = newest_checkpoint(store, world) if store.candidates() else None
        if checkpoint is None:
            _begin(run_dir, snapshot)
        if checkpoint is not None and kept_result(run, checkpoint.step, tree) is not None:
            return
        screen.line(f"baseline {name}: trains in {run.dir} for {run.max_cpu_s:,.1f} CPU seconds, as the run did")
        built = run_of(settings, snapshot, screen, world, weights=checkpoint.path if checkpoint else None)
        progress = Progress()
        if checkpoint is not None:
            for note in refuse_drift(checkpoint.state, built.fixed_state(checkpoint.state["start"])):
                screen.line(f"note: {note}")
            rewind(run, store, checkpoint, snapshot)
            progress = Progress.restored(checkpoint)
        session = replace(session_of(built, checkpoint, watch), go_on=go_on)
        if read_scorecards(run_dir, "start")[0] != session.eval_key:
            raise DataError(
                f"{run_dir}: start weights, data or evaluation differ from those of the run to compare with; train a "
                "new run"
            )
        with noting_stop(run_dir, world, progress):
            run_loop(run_session(session, progress))


def _begin(run_dir: Path, snapshot: str) -> None:
    """Write the baseline's configuration, and copy the run's evaluation of the start weights."""
    home = run_dir.parent.parent
    read_scorecards(home, "start")  # raises if they are damaged, before they are copied
    copied = [Path(TRAJECTORIES, f"eval-start-{mode}.jsonl") for mode in MODES]
    ensure_directory(run_dir / TRAJECTORIES)
    for path in [*copied, scorecards_path(Path(), "start")]:
        write_atomic(run_dir / path, (home / path).read_bytes())
    write_atomic(run_dir / CONFIG, snapshot.encode())


def beside(run_dir: Path, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Add an evaluated baseline to eval.json of the run, and return the new content. Each mode has the means over the
    tasks on which neither policy nor the baseline failed; greedy also has the figures of `measured`."""
    home = run_dir / FOLDER / name
    before, after, cards = (read_scorecards(*of)[1] for of in ((run_dir, "start"), (run_dir, "end"), (home, "end")))
    steps, cpu_s = len(RunDir(home).metrics()), trained_cpu_s(home)
    own = f"{len(RunDir(run_dir).metrics()):,} in {trained_cpu_s(run_dir):,.1f}"
    note, figures = f"{steps:,} steps in {cpu_s:,.1f} CPU seconds; the run: {own}", Figures.from_json(result["figures"])
    row = measured(cards["greedy"], before["greedy"], after["greedy"], figures=figures, note=note)
    for mode in MODES:
        failed = {*before[mode].failed, *after[mode].failed, *cards[mode].failed}
        row[mode] = cards[mode].without(failed).means()
    row |= {"steps": steps, "cpu_s": cpu_s}
    made = {key: value for key, value in result.items() if key != "sha256"}
    made["baselines"] = {**made.get("baselines", {}), name: row}
    write_atomic(run_dir / EVAL, signed(made).encode())
    return made
