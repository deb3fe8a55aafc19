"""Usage as a function of price: a sweep along every varied number, with all other settings equal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentgrpo.reports.pareto.families import TERMS, RunFamily, charge, is_number, short
from agentgrpo.reports.pareto.points import Point, contrast


def sweeps(family: RunFamily, modes: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
    """A sweep for each varied number and each combination of the other varied settings: {"key", "name", "is_price",
    "fixed", "values", "modes": {mode: {"use": figure -> [interval of each value], "quality", "cost", "statements"}}}.
    Values are sorted by the price that they charge; a reward weight charges if negative. A mode lacking an evaluation
    of any value is left out."""
    found = []
    for key in family.varied:
        groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
        for setting in family.settings:
            if is_number(setting.varied.get(key)):
                fixed = {k: v for k, v in setting.varied.items() if k != key}
                groups.setdefault(json.dumps(fixed, default=str), (fixed, []))[1].append(setting.label)
        for fixed, labels in groups.values():
            if len(labels) > 1:
                found.append(_sweep(family, key, fixed, labels, modes))
    return found


def _sweep(
    family: RunFamily, key: str, fixed: dict[str, Any], labels: Sequence[str], modes: Mapping[str, Sequence[Point]]
) -> dict[str, Any]:
    is_price = key.startswith(TERMS)
    lines = {}
    values = sorted(charge(key, setting.varied[key]) for setting in family.settings if setting.label in labels)
    for mode, points in modes.items():
        line = [point for point in points if point.kind == "trained" and point.label in labels]
        if len(line) < len(labels):
            continue  # some points are not evaluated in this mode, or share no task
        line.sort(key=lambda point: charge(key, point.varied[key]))
        lines[mode] = {
            "use": {name: [p.use.get(name, [None, None, None]) for p in line] for name in family.use},
            "quality": [point.quality for point in line],
            "cost": [point.cost for point in line],
            "statements": [_statement(name, key if is_price else "", line) for name in family.use],
        }
    name = short(key, family.varied)
    return {"key": key, "name": name, "is_price": is_price, "fixed": fixed, "values": values, "modes": lines}


def _statement(name: str, key: str, line: Sequence[Point]) -> dict[str, Any]:
    """The change of a figure from the lowest value to the highest. own: the price is charged for what the figure
    counts, so the figure should fall. never_rises, rises_beyond_noise: whether it rises nowhere, and the pairs of
    values (by index) between which it rises beyond noise."""
    pairs = [(i, j) for j in range(len(line)) for i in range(j)]
    rises = [pair for pair in pairs if _low(contrast(line[pair[0]], line[pair[1]], name)) > 0]
    means = [point.use[name][0] for point in line if name in point.use]
    steps = [b - a for a, b in pairwise(means) if a is not None and b is not None]
    return {
        "figure": name,
        "own": _is_priced(name, key),
        "first": means[0] if means else None,
        "last": means[-1] if means else None,
        "change": contrast(line[0], line[-1], name) or [None, None, None],
        "never_rises": all(step <= 0 for step in steps),
        "rises_beyond_noise": [list(pair) for pair in rises],
    }


def _is_priced(figure: str, key: str) -> bool:
    """Whether the reward term charges for what the figure counts, like rerank_cost.weight for rerank_calls."""
    words = {*re.split(r"[._]", key.removeprefix(TERMS))} if key else set()
    return figure.split("_")[0] in words


def _low(found: Sequence[float | None] | None) -> float:
    return found[1] if found is not None and found[1] is not None else 0.0


def sentence(statement: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    """The statement as a sentence."""
    values, change = sweep["values"], statement["change"]
    what = f"the price in {sweep['name']}" if sweep["is_price"] else sweep["name"]
    head = (
        f"{statement['figure'].replace('_', ' ')}: {_number(statement['first'])} to {_number(statement['last'])} as "
        f"{what} rises from {values[0]:g} to {values[-1]:g}"
    )
    if change[1] is not None:
        head += f" ({change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}])"
    if not statement["own"]:
        return head
    if statement["rises_beyond_noise"]:
        between = ", ".join(f"{values[i]:g} and {values[j]:g}" for i, j in statement["rises_beyond_noise"])
        return f"{head}; NOT monotone: it rises beyond noise between {between}"
    return f"{head}; monotone{'' if statement['never_rises'] else ' within the intervals'}: it never rises" + (
        "" if statement["never_rises"] else " beyond noise"
    )


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"
