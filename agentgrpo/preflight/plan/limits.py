"""The limits of a plan, and whether it exceeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from agentgrpo.preflight.plan.device import LARGE_SHARE
from agentgrpo.preflight.plan.estimate import Plan

LONG_S = 86_400.0
"""A run that is estimated to take longer than this gets advice on shortening it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """The plan's value of `measure` is `takes`, more than `limit`; `said` names the source of the limit. Memory and
    disk are in bytes, time in seconds."""

    kind: str
    takes: float
    limit: float
    said: str
    measure: Callable[[Plan], float]
    each_step: float = 0.0
    """The increase per step, for quantities counted over a run."""


def overruns(plan: Plan) -> Iterator[Overrun]:
    """Yield every limit that the plan exceeds."""
    for limit in _limits(plan):
        if limit.takes > limit.limit:
            yield limit


def _limits(plan: Plan) -> Iterator[Overrun]:
    if plan.memory_bytes is not None:
        yield Overrun(
            kind="memory",
            takes=plan.memory.need,
            limit=LARGE_SHARE * plan.memory_bytes,
            said=f"{LARGE_SHARE:.0%} of {plan.whose}",
            measure=lambda p: p.memory.need,
        )
    if plan.free_bytes is not None:
        yield Overrun(
            kind="disk",
            takes=plan.disk_bytes,
            limit=plan.free_bytes,
            said="free where the run directory would be",
            measure=lambda p: p.disk_bytes,
        )
    yield Overrun(
        kind="time",
        takes=plan.run_seconds,
        limit=LONG_S,
        said="for all steps",
        measure=lambda p: p.run_seconds,
        each_step=sum(plan.seconds.values()),
    )
    yield from _budgets(plan)


def _budgets(plan: Plan) -> Iterator[Overrun]:
    """Budget limits, each of which would stop a run."""
    step, run = plan.config["budget"]["per_step"], plan.config["budget"]["per_run"]
    if step["money"] is not None:
        yield _budget("money", "per_step.money", step["money"], lambda p: p.money[0], plan)
    if run["money"] is not None:
        yield _budget("money", "per_run.money", run["money"], lambda p: p.money[1], plan, plan.money[0])
    for kind, limit in step["calls"].items():
        if limit is not None:
            yield _budget("calls", f"per_step.calls.{kind}", limit, partial(_calls, kind, of_run=False), plan)
    for kind, limit in run["calls"].items():
        if limit is not None:
            each = _calls(kind, plan, of_run=False)
            yield _budget("calls", f"per_run.calls.{kind}", limit, partial(_calls, kind, of_run=True), plan, each)


def _budget(
    kind: str, key: str, limit: float, measure: Callable[[Plan], float], plan: Plan, each_step: float = 0.0
) -> Overrun:
    return Overrun(
        kind=kind, takes=measure(plan), limit=limit, said=f"budget.{key}", measure=measure, each_step=each_step
    )


def _calls(kind: str, plan: Plan, *, of_run: bool) -> float:
    return sum(c.of_run if of_run else c.of_step for c in plan.costs if c.calls.kind == kind and c.is_counted)
