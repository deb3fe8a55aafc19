"""The share of retrieval in a score: evaluations with a counterfactual against the same checkpoint without one."""

from __future__ import annotations

from typing import Any

from agentgrpo.reports.pareto.families import RunFamily, Setting
from agentgrpo.reports.pareto.intervals import difference
from agentgrpo.reports.pareto.points import aligned
from agentgrpo.reports.pareto.reading import EvaluatedRun, are_one_setting, owner


def counterfactuals(family: RunFamily, mode: str) -> list[dict[str, Any]]:
    """A row for each setting and counterfactual, with its seeds joined: {"setting", "counterfactual", "runs", "n",
    "with": the real quality, "without": quality under the counterfactual, "change": [mean, low, high] of without −
    with, paired by task and run, "share": lost share of the quality, "use": figure -> {"with","without"}}. Evaluations
    whose run is missing are left out."""
    pairs: dict[tuple[str, str], list[tuple[EvaluatedRun, EvaluatedRun]]] = {}
    for evaluation in family.counterfactual:
        base = _held_against(evaluation, family)
        if base is not None and "end" in base[1].cards[mode] and "end" in evaluation.cards[mode]:
            pairs.setdefault((base[0].label, evaluation.counterfactual), []).append((base[1], evaluation))
    names = sorted({name for _, name in pairs})
    keys = [(setting.label, name) for setting in family.settings for name in names]
    rows = [_row(family, *key, pairs[key], mode) for key in keys if key in pairs]
    return [row for row in rows if row is not None]


def _held_against(evaluation: EvaluatedRun, family: RunFamily) -> tuple[Setting, EvaluatedRun] | None:
    """The real evaluation of the same checkpoint: by its own run, or for an earlier step by `agentgrpo eval`."""
    home = owner(evaluation, family.runs)
    is_last = home is None or evaluation.step in (None, home.last_step)
    for setting in family.settings:
        for run in setting.runs:
            same = run.checkpoint is not None and run.checkpoint == evaluation.checkpoint
            if (run is home and is_last) or (same and are_one_setting([run, evaluation])):
                return setting, run
    return None


def _row(
    family: RunFamily, setting: str, name: str, pairs: list[tuple[EvaluatedRun, EvaluatedRun]], mode: str
) -> dict[str, Any] | None:
    cards = aligned([run.cards[mode]["end"] for pair in pairs for run in pair])
    if not cards:
        return None
    real, other = cards[::2], cards[1::2]
    quality = [[list(card.columns[family.quality]) for card in side] for side in (real, other)]
    change = difference(*quality, paired_runs=True)
    means = [sum(card.means()[family.quality] for card in side) / len(side) for side in (real, other)]
    use = {
        column: dict(
            zip(
                ("with", "without"),
                (sum(card.means()[column] for card in side) / len(side) for side in (real, other)),
                strict=True,
            )
        )
        for column in family.use
    }
    return {
        "setting": setting,
        "counterfactual": name,
        "runs": [evaluation.name for _, evaluation in pairs],
        "n": len(cards[0].task_ids),
        "with": means[0],
        "without": means[1],
        "change": change,
        "share": (means[0] - means[1]) / means[0] if means[0] else None,
        "use": use,
    }
