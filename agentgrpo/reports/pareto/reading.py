"""The evaluated runs below a folder: training runs, and runs of `agentgrpo eval`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import AgentGrpoError, ConfigError
from agentgrpo.records.card import flatten
from agentgrpo.records.metrics import METRICS
from agentgrpo.records.run_dir import CONFIG, EVAL, STOPPED, RunDir, stop_sentence
from agentgrpo.reports.damage import warn_of_damage
from agentgrpo.reports.recorded import MODES, RecordedEvaluation, read_recorded
from agentgrpo.run.drift import SOFT, SOFT_GROUPS

_OWN = ({*SOFT} - {"run.max_steps", "run.max_cpu_s"}) | {"run.seed", "counterfactual.name"}
"""Keys that may differ between runs of one setting."""
_INSIDE = ("checkpoints", "trajectories", "tensorboard", "sync", "orphans")
"""Subfolders of a run that contain no runs."""
_NOTHING: tuple[Any, ...] = (None, 0, False, "none", "", {}, [])
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A directory with an evaluation."""

    name: str
    """Path relative to the given folder."""
    path: Path
    settings: Mapping[str, Any]
    """Keys of the configuration that affect results, without the seed and the counterfactual."""
    seed: Any
    counterfactual: str
    trains: bool
    """False for a run of `agentgrpo eval`."""
    checkpoint: Path | None
    """The evaluated checkpoint, if `trains` is False and the checkpoint is known."""
    last_step: int | None
    """Step of the newest checkpoint."""
    start: str
    """Identifies the start weights: equal for runs with the same ones."""
    agent: str
    task: str
    cards: Mapping[str, Mapping[str, RecordedEvaluation]]
    """mode -> policy ("end", "start", or the name of a baseline) -> its evaluation."""
    evaluation: Mapping[str, Any]
    """The content of eval.json."""

    @property
    def step(self) -> int | None:
        """Step of the evaluated checkpoint."""
        match = _STEP.fullmatch(self.checkpoint.name) if self.checkpoint else None
        return int(match[1]) if match else None


def find(root: Path) -> tuple[list[EvaluatedRun], list[tuple[str, str]]]:
    """(all evaluated runs by name, (name, reason) of each unreadable run). Raises ConfigError if no run can be read."""
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory; give a directory that contains runs, such as runs")
    found, skipped = [], []
    for path in _evaluated(root):
        name = path.relative_to(root).as_posix() if path != root else path.resolve().name
        try:
            run = RunDir(path)
            warn_of_damage([run])
            found.append(_read(name, run))
        except (AgentGrpoError, LookupError, TypeError, ValueError, AttributeError) as e:
            reason = str(e) if isinstance(e, AgentGrpoError) else f"eval.json or config.yaml is not ours: {e!r}"
            skipped.append((name, reason))
    if not found:
        why = f": {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise ConfigError(f"{root} holds no run with an evaluation that can be read (eval.json){why}")
    return found, skipped


def _evaluated(root: Path) -> Iterator[Path]:
    """Folders with eval.json in order, and folders of runs that stopped before their evaluation."""
    for folder, inside, files in os.walk(root):
        inside[:] = sorted(name for name in inside if name not in _INSIDE)
        if {EVAL, STOPPED} & {*files} and CONFIG in files:
            yield Path(folder)


def _read(name: str, run: RunDir) -> EvaluatedRun:
    flat = flatten(run.config)
    state, said = run.checkpoint_state(), run.evaluated
    if run.evaluation is None:
        raise ConfigError(f"not evaluated: {stop_sentence(run.stopped or {})}")
    evaluation = run.evaluation
    policies = ("end", "start", *evaluation.get("baselines", {}))
    cards = {mode: {p: card for p in policies if (card := _card(run, p, mode))} for mode in MODES}
    if not any("end" in of_mode for of_mode in cards.values()):
        raise ConfigError("it has no trajectories of its evaluation")
    checkpoint = said.get("ckpt")
    model = {key: value for key, value in flat.items() if key.startswith("model.")}
    return EvaluatedRun(
        name=name,
        path=run.path,
        settings={k: v for k, v in flat.items() if k not in _OWN and not f"{k}.".startswith(SOFT_GROUPS)},
        seed=flat.get("run.seed"),
        counterfactual=str(flat.get("counterfactual.name", "none")),
        trains=(run.path / METRICS).is_file(),
        checkpoint=Path(checkpoint) if checkpoint else None,
        last_step=max(run.checkpoints(), default=None),
        start=str(state.get("start", {}).get("sha256") or sorted(model.items())),
        agent=str(flat.get("environment.name", "")),
        task=str(flat.get("task.name", "")),
        cards=cards,
        evaluation=evaluation,
    )


def _card(run: RunDir, policy: str, mode: str) -> RecordedEvaluation | None:
    card = read_recorded(run, policy, mode)
    return card if card is not None and card.task_ids else None


def owner(evaluation: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> EvaluatedRun | None:
    """The run in `runs` that wrote the evaluated checkpoint. If `agentgrpo eval` recorded no path or the folders have
    moved, the only training run with the same settings and seed, else None."""
    if evaluation.checkpoint is not None:
        home = evaluation.checkpoint.parent.parent.resolve()
        for run in runs:
            if run.trains and run.path.resolve() == home:
                return run
    alike = [r for r in runs if r.trains and r.seed == evaluation.seed and are_one_setting([r, evaluation])]
    return alike[0] if len(alike) == 1 else None


def are_one_setting(runs: Sequence[EvaluatedRun]) -> bool:
    return not differing([run.settings for run in runs])


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys with several values. A key that some runs lack and that is empty in the others is newer than those runs and
    does not count."""
    keys = sorted({key for one in settings for key in one})
    found = []
    for key in keys:
        values = [one[key] for one in settings if key in one]
        is_newer = len(values) < len(settings) and values[0] not in _NOTHING
        if is_newer or len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1:
            found.append(key)
    return found
