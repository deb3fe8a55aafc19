"""Baselines beside a run (run.eval.baselines): what its start weights come to by other means, for as many CPU seconds.

    RUN, evaluated --cpu_budget--> RUN/baselines/NAME, trained and evaluated --beside--> eval.json of RUN

A baseline is a run of its own, which differs in what is learned from and in when it ends. The evaluation of the start
weights is the run's.
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
"""Name -> the presets in which it differs from the run."""
FOLDER = "baselines"
"""Of their run directories, in that of the run."""
_NO_END = 1_000_000
"""Steps, more than their CPU seconds are enough for."""
_ADAPTER_LR = 1e-4
"""Of supervised training, where the weights take that of optimizer=sft (docs/supervised.md)."""

ReadPreset = Callable[[str, str], Mapping[str, Any]]
"""(group, preset) -> what it says."""


class Baselines:
    """Those of a run. Made before it begins, so that what cannot be is refused then."""

    def __init__(self, settings: Settings, snapshot: str, world: ProcessGroup, read: ReadPreset) -> None:
        """snapshot: the run's configuration, interpolations unresolved. Raises ConfigError."""
        run, asked = settings.run, "run.eval.baselines=true"
        if not run.final_eval:
            raise ConfigError(f"{asked} with run.final_eval=false, which leaves nothing to hold them against; drop one")
        if not run.checkpoint_every:
            raise ConfigError(f"{asked} with run.checkpoint_every=0: what is stopped could not go on; set it above 0")
        if world.size > 1:
            raise ConfigError(f"{asked} with {world.size} processes; allowed is 1: leave it out, or the launcher")
        self._settings, self._snapshot, self._world = settings, yaml.safe_load(snapshot), world
        self._chosen = {
            name: {group: read(group, preset) for group, preset in presets.items()}
            for name, presets in BASELINES.items()
        }
        self._sft_lr = float(read("optimizer", "sft")["lr"])
        for name in BASELINES:
            refuse_unfit(settings_of(self._of(name, settings.tree, cpu_s=1.0)))

    def train(self, step: int, *, screen: Screen, watch: Watch) -> dict[str, Any]:
        """eval.json's content with all of them: trained, evaluated and written down one after the other, where that is
        not done yet. The run's own model must be gone. step: how many the run has done. Raises Preempted after a
        signal, DataError."""
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
                gc.collect()  # a model may be a circle of modules
                settings = settings_of(self._of(name, self._settings.tree, cpu_s=cpu_s))
                snapshot = self._of(name, self._snapshot, cpu_s=cpu_s)
                _train(name, settings, snapshot, self._world, screen, watch, go_on=go_on)
                result = beside(run_dir, name, result)
        return result

    def _of(self, name: str, tree: Mapping[str, Any], *, cpu_s: float) -> dict[str, Any]:
        """The configuration of a baseline from the run's."""
        made = deepcopy(dict(tree) | self._chosen[name])
        made["optimizer"]["final_fraction"] = 1.0  # of a schedule whose end nobody knows
        if name == "rejection_sampling":
            made["algorithm"]["advantage_args"] = {"by": "grade"}  # the best by reward learn to be cheap, not right
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
    """The CPU seconds that a run has trained for. Raises DataError where they were not recorded."""
    run = RunDir(run_dir)
    clocked = {row["step"] for row in run.timings() if row.get(CPU) is not None}
    if lacking := [row["step"] for row in run.metrics() if row["step"] not in clocked]:
        raise DataError(
            f"{run_dir}: timings.jsonl has no CPU seconds of step {lacking[0]}, so that no baseline can have as many; "
            "train it anew with run.eval.baselines=true"
        )
    return trained_cpu_s(run_dir)


def lacking_baselines(result: Mapping[str, Any]) -> list[str]:
    """Those that eval.json does not have yet and could. Only a task set that demonstrates has an oracle."""
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
    """Train and evaluate a baseline in its directory, or go on with that; nothing is done again. tree: its
    configuration, interpolations unresolved. go_on: see resume.way_on, of the run."""
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
                f"{run_dir}: start weights, data or evaluation are no longer those of the run that it is to be held "
                "against; train that anew"
            )
        with noting_stop(run_dir, world, progress):
            run_loop(run_session(session, progress))


def _begin(run_dir: Path, snapshot: str) -> None:
    """The configuration and the evaluation of the start weights, which is the run's."""
    home = run_dir.parent.parent
    read_scorecards(home, "start")  # or damaged ones would be copied
    copied = [Path(TRAJECTORIES, f"eval-start-{mode}.jsonl") for mode in MODES]
    ensure_directory(run_dir / TRAJECTORIES)
    for path in [*copied, scorecards_path(Path(), "start")]:
        write_atomic(run_dir / path, (home / path).read_bytes())
    write_atomic(run_dir / CONFIG, snapshot.encode())


def beside(run_dir: Path, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """eval.json of a run, with a baseline that was evaluated; it is written anew. By mode the means of all that the
    trained policy has there too, over the tasks that nobody failed on; greedy also what `measured` says."""
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
