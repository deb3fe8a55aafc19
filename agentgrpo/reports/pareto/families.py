"""Groups runs that answered the same tasks, finds the settings that vary among them, and joins the seeds of one
setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.reports.pareto.reading import EvaluatedRun, are_one_setting, differing, owner
from agentgrpo.reports.recorded import MODES, RecordedEvaluation

STEP = "step"
"""A varied key that is no setting: the step of an evaluated checkpoint that is not its run's last."""
TERMS = "reward.terms."
_ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Runs that differ only in their seed."""

    label: str
    varied: Mapping[str, Any]
    """The value of every key that varies in the family."""
    runs: tuple[EvaluatedRun, ...]

    @property
    def seeds(self) -> list[Any]:
        return [run.seed for run in self.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFamily:
    agent: str
    task: str
    quality: str
    use: tuple[str, ...]
    """Usage figures, such as searches: the headline without quality and cost."""
    size: int
    """Number of tasks in an evaluation."""
    varied: tuple[str, ...]
    settings: tuple[Setting, ...]
    counterfactual: tuple[EvaluatedRun, ...]
    """Evaluations with a counterfactual."""
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[EvaluatedRun]:
        """The runs of all settings, sorted by name."""
        return sorted((run for setting in self.settings for run in setting.runs), key=lambda run: run.name)


def families(runs: Sequence[EvaluatedRun]) -> list[RunFamily]:
    """Group the runs into families; families with most runs come first."""
    groups: dict[object, list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault((run.agent, _card(run).asked), []).append(run)
    return sorted(map(_family, groups.values()), key=lambda family: -len(family.runs))


def _card(run: EvaluatedRun) -> RecordedEvaluation:
    return next(run.cards[mode]["end"] for mode in MODES if "end" in run.cards[mode])


def _family(runs: Sequence[EvaluatedRun]) -> RunFamily:
    policies = [run for run in runs if run.counterfactual == "none" or run.trains]
    seen = {id(run): {**run.settings, **_step_of(run, runs)} for run in policies}
    policies = [run for run in policies if not _is_again(run, runs)]
    trained_with = {run.counterfactual for run in policies}
    varied = differing([seen[id(run)] for run in policies])
    groups: dict[str, list[EvaluatedRun]] = {}
    for run in policies:
        groups.setdefault(_text([seen[id(run)].get(key, _ABSENT) for key in varied] + [run.counterfactual]), []).append(
            run
        )
    settings = []
    for group in groups.values():
        values = {key: seen[id(group[0])].get(key, _ABSENT) for key in varied}
        if len(trained_with) > 1:
            values["counterfactual"] = group[0].counterfactual
        seeds = sorted(group, key=lambda run: _order("", run.seed))  # pairs up the seeds of two settings
        settings.append(Setting(label=_label(values, group), varied=values, runs=tuple(seeds)))
    card = _card(runs[0])
    return RunFamily(
        agent=runs[0].agent,
        task=runs[0].task,
        quality=card.quality,
        use=tuple(name for name in card.headline if name not in (card.quality, "cost")),
        size=len(card.asked),
        varied=(*varied, *(["counterfactual"] if len(trained_with) > 1 else [])),
        settings=tuple(sorted(settings, key=lambda s: [_order(*item) for item in s.varied.items()])),
        counterfactual=tuple(run for run in runs if not run.trains and run.counterfactual != "none"),
        notes=_notes(policies, varied),
    )


def _step_of(run: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> dict[str, Any]:
    if run.trains or run.step is None:
        return {}
    home = owner(run, runs)
    return {} if home is None or run.step == home.last_step else {STEP: run.step}


def _is_again(run: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> bool:
    """Whether this run evaluates weights that their own run has evaluated already."""
    home = None if run.trains else owner(run, runs)
    return home is not None and are_one_setting([home, run]) and not _step_of(run, runs)


def _label(values: Mapping[str, Any], runs: Sequence[EvaluatedRun]) -> str:
    """The varied keys, shortened, with their values: retriever_cost.web = -0.1."""
    if not values:
        return runs[0].name if len(runs) == 1 else "all runs"
    words = {key: short(key, values) for key in values}
    return ", ".join(f"{words[key]} = {_shown(value)}" for key, value in values.items())


def short(key: str, keys: Mapping[str, Any] | Sequence[str]) -> str:
    """The key's last two words, or the whole key if another key ends in the same two words."""
    tail = ".".join(key.split(".")[-2:])
    return key if sum(".".join(k.split(".")[-2:]) == tail for k in keys) > 1 else tail


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def charge(key: str, value: float) -> float:
    """A quantity that rises with the price. A reward weight charges by being negative, so its sign is flipped."""
    return 0.0 - value if key.startswith(TERMS) else float(value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(key: str, value: Any) -> tuple[int, float, str]:
    """Sort key: numbers come first, ordered by their charge."""
    return (0, charge(key, value), "") if is_number(value) else (1, 0.0, _text(value))


def _failed(run: EvaluatedRun) -> str:
    """Number of failed tasks, by mode if the modes differ; "" if no task failed."""
    counts = {mode: card.num_failed for mode in MODES if (card := run.cards[mode].get("end")) is not None}
    if len({*counts.values()}) == 1:
        return str(max(counts.values()) or "")
    return " and ".join(f"{count} ({mode})" for mode, count in counts.items() if count)


def _notes(runs: Sequence[EvaluatedRun], varied: Sequence[str]) -> tuple[str, ...]:
    notes = []
    prices = [key for key in varied if key.startswith(("run.eval.prices", "budget.prices"))]
    if prices:
        notes.append(f"costs are not comparable: {', '.join(prices)} differ, by which calls are priced")
    failed = {run.name: n for run in runs if (n := _failed(run))}
    if failed:
        notes.append("tasks that failed are left out: " + ", ".join(f"{n} of {name}" for name, n in failed.items()))
    return tuple(notes)
