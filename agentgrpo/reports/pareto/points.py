"""Policies as points of cost and quality with intervals, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from agentgrpo.reports.pareto.families import RunFamily
from agentgrpo.reports.pareto.intervals import Interval, difference, interval
from agentgrpo.reports.pareto.reading import EvaluatedRun
from agentgrpo.reports.recorded import RecordedEvaluation, in_common

COST = "cost"
ORACLE = "oracle"
"""Kind of the ideal policy. It is hypothetical and therefore never on the front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    label: str
    kind: str
    """trained, start, baseline or oracle."""
    varied: Mapping[str, Any]
    runs: tuple[str, ...]
    seeds: tuple[Any, ...]
    n: int
    """Tasks on which no run of the point failed; 0 = only means are known."""
    quality: Interval
    cost: Interval
    use: Mapping[str, Interval]
    members: tuple[tuple[float, float | None], ...]
    """(quality, cost) of each run."""
    cards: tuple[RecordedEvaluation, ...] = ()
    """One evaluation per run, with the same tasks in the same order."""
    on_front: bool = False
    dominated_by: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "kind": self.kind,
            "varied": dict(self.varied),
            "runs": list(self.runs),
            "seeds": list(self.seeds),
            "n": self.n,
            "quality": self.quality,
            "cost": self.cost,
            "use": dict(self.use),
            "members": [list(member) for member in self.members],
            "on_front": self.on_front,
            "dominated_by": [dict(row) for row in self.dominated_by],
        }

    def rows(self, column: str) -> list[list[float]]:
        """rows[run][task]; [] if the figure is not known by task."""
        known = all(column in card.columns for card in self.cards)
        return [list(card.columns[column]) for card in self.cards] if known else []


def points(family: RunFamily, mode: str) -> list[Point]:
    """The end weights of every setting, the start weights, the baselines and the oracle, as far as they were
    evaluated."""
    found = [_joined(family, s.label, "trained", s.varied, s.runs, mode, "end") for s in family.settings]
    starts: dict[str, list[EvaluatedRun]] = {}
    for run in family.runs:
        if run.trains:
            starts.setdefault(run.start, []).append(run)
    for i, runs in enumerate(starts.values(), start=1):
        label = "start policy" if len(starts) == 1 else f"start policy {i}"
        found.append(_joined(family, label, "start", {}, runs, mode, "start"))
    baselines = sorted({name for run in family.runs for name in run.cards[mode]} - {"start", "end"})
    found += [_joined(family, name, "baseline", {}, family.runs, mode, name) for name in baselines]
    if mode == "greedy":
        found.append(_oracle(family))
    return [point for point in found if point is not None]


def _joined(
    family: RunFamily,
    label: str,
    kind: str,
    varied: Mapping[str, Any],
    runs: Sequence[EvaluatedRun],
    mode: str,
    policy: str,
) -> Point | None:
    having = [run for run in runs if policy in run.cards[mode]]
    cards = aligned([run.cards[mode][policy] for run in having])
    if not cards:
        return None
    means = [card.means() for card in cards]
    costs = [_cost(run, mode, policy, mean) for run, mean in zip(having, means, strict=True)]
    point = Point(
        label=label,
        kind=kind,
        varied=varied,
        runs=tuple(run.name for run in having),
        seeds=tuple(run.seed for run in having),
        n=len(cards[0].task_ids),
        quality=[],
        cost=[],
        use={},
        members=tuple((mean[family.quality], cost) for mean, cost in zip(means, costs, strict=True)),
        cards=tuple(cards),
    )
    by_task = point.rows(COST)
    known = [cost for cost in costs if cost is not None]
    mean_cost = fmean(known) if len(known) == len(costs) else None
    return replace(
        point,
        quality=interval(point.rows(family.quality)),
        cost=interval(by_task) if by_task else [mean_cost, None, None],
        use={name: interval(rows) for name in family.use if (rows := point.rows(name))},
    )


def aligned(cards: Sequence[RecordedEvaluation]) -> list[RecordedEvaluation]:
    """Restrict the evaluations to their common tasks, in the same order; [] without common tasks."""
    if not cards:
        return []
    common = cards[0]
    for card in cards[1:]:
        ids, _ = in_common(common, card)
        common = common.only(ids)
    return [card.only(common.task_ids) for card in cards] if common.task_ids else []


def _cost(run: EvaluatedRun, mode: str, policy: str, mean: Mapping[str, float]) -> float | None:
    """The cost from the trajectories, or from eval.json if they did not count calls."""
    if COST in mean:
        return mean[COST]
    said = run.evaluation.get(mode)
    of_policy = said.get({"end": "trained", "start": "baseline"}.get(policy)) if isinstance(said, Mapping) else None
    return _numbers(of_policy, [COST]).get(COST)


def _oracle(family: RunFamily) -> Point | None:
    """The oracle's means, if eval.json has every figure; it has no values by task."""
    named = (family.quality, COST, *family.use)
    found = [(run, _numbers(run.evaluation.get(ORACLE), named)) for run in family.runs if run.trains]
    runs = [run for run, row in found if row]
    rows = [row for _, row in found if row]
    if not rows:
        return None
    means = {name: fmean(row[name] for row in rows) for name in named}
    return Point(
        label=ORACLE,
        kind=ORACLE,
        varied={},
        runs=tuple(run.name for run in runs),
        seeds=tuple(run.seed for run in runs),
        n=0,
        quality=[means[family.quality], None, None],
        cost=[means[COST], None, None],
        use={name: [means[name], None, None] for name in family.use},
        members=tuple((row[family.quality], row[COST]) for row in rows),
    )


def _numbers(row: object, names: Sequence[str]) -> dict[str, float]:
    """The numbers with these names; {} if any is missing."""
    found = row if isinstance(row, Mapping) else {}
    numbers = {name: float(found[name]) for name in names if isinstance(found.get(name), int | float)}
    return numbers if len(numbers) == len(names) else {}


def with_front(found: Sequence[Point]) -> list[Point]:
    """Mark the points on the front, and list for the others the front points that dominate them.

    A point dominates another if it costs no more and is right no less often, and is better in one of the two. It does
    so beyond noise if the interval of one of the two differences excludes 0. The oracle is ignored.
    """
    real = [point for point in found if point.kind != ORACLE and point.cost[0] is not None]
    front = [point for point in real if not any(_dominates(other, point) for other in real)]
    made = []
    for point in found:
        better = [other for other in front if point in real and _dominates(other, point)]
        rows = tuple({"label": other.label, "beyond_noise": _clearly(other, point)} for other in better)
        made.append(replace(point, on_front=point in front, dominated_by=rows))
    return made


def _dominates(a: Point, b: Point) -> bool:
    quality, cost = (a.quality[0], b.quality[0]), (a.cost[0], b.cost[0])
    assert None not in (*quality, *cost)
    no_worse = quality[0] >= quality[1] and cost[0] <= cost[1]  # type: ignore[operator]
    return no_worse and (quality[0] != quality[1] or cost[0] != cost[1])


def _clearly(a: Point, b: Point) -> bool:
    """Whether `a`, which dominates `b`, is cheaper or better beyond noise."""
    if not a.cards or not b.cards:
        return False
    quality = contrast(b, a, a.cards[0].quality)
    cost = contrast(b, a, COST)
    return _low(quality) > 0 or (cost is not None and cost[2] is not None and cost[2] < 0)


def _low(found: Interval | None) -> float:
    return found[1] if found is not None and found[1] is not None else 0.0


def contrast(a: Point, b: Point, column: str) -> Interval | None:
    """b − a over their common tasks; None if the figure is not known by task."""
    cards = aligned([*a.cards, *b.cards])
    if not cards or any(column not in card.columns for card in cards):
        return None
    rows = [list(card.columns[column]) for card in cards]
    before, now = rows[: len(a.cards)], rows[len(a.cards) :]
    return difference(before, now, paired_runs=len(before) == len(now) and a.seeds == b.seeds)
