"""Whether calls that cost money have a price: in the figures, in the reward and in the budget."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from agentgrpo.config.build import build_node
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Outcome, Task, ToolRecord
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.judges.base import Grade
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes
from agentgrpo.preflight.plan.knobs import helpful
from agentgrpo.preflight.plan.limits import overruns
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import SEARCH_EFFICIENCY

OF_EVERY_CALL = ("tool_calls", "tool_turns", "rounds_used", "search_rounds")
"""Metrics that count calls regardless of their kind."""


class _Lenient:
    """Grades every answer as right, so that a cost charged only for right answers shows too."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return [Grade(score=1.0) for _ in answers]


async def look_at_prices(case: Case, found: CheckNotes) -> None:
    """The price of every kind of call that the agent counts, and every money limit."""
    figures = case.built.runner.figures
    prices = figures.priced(case.built.run.eval.prices)
    paid = case.built.meter.budget.prices.by_kind
    charged = await _charged(case, figures.counts)
    found.facts |= {
        "of a call, in the figures": dict(prices),
        "of a call, in the budget": {k: v for k, v in paid.items() if v},
        "charged by the reward": {kind: value for kind, value in charged.items() if value is not None},
    }
    for kind, price in prices.items():
        if price or paid.get(kind) or not _can_be_made(kind, case):
            continue
        if charged[kind] is None or charged[kind] == 0.0:
            found.problem(
                f"a call of {kind} costs nothing: neither in the figures nor in the budget nor in the reward",
                why="a policy that makes more of them looks as good, and the column `cost` says it costs as little",
                key=f"run.eval.prices.{kind}",
            )
        else:
            found.note(
                f"a call of {kind} costs nothing in the figures, though the reward charges {charged[kind]:.3g}",
                why="the column `cost` of an evaluation says nothing of them",
                key=f"run.eval.prices.{kind}",
            )
    _budget(case, found)


def _can_be_made(kind: str, case: Case) -> bool:
    """Whether such calls occur: a search agent counts web and rerank calls, but may have no web retriever or
    reranker."""
    environment = case.built.runner.environment
    if not isinstance(environment, SearchOptions):
        return True
    return {"web": "web" in environment.retrievers, "rerank": environment.reranker is not None}.get(kind, True)


def _budget(case: Case, found: CheckNotes) -> None:
    """Money limits that no price counts towards, and limits that the run would exceed."""
    budget = case.config["budget"]
    limits = [f"budget.{scope}.money" for scope in ("per_step", "per_run") if budget[scope]["money"] is not None]
    counted = [cost for cost in case.plan.costs if cost.is_counted and cost.calls.kind in budget["prices"]]
    free = sorted({cost.calls.kind for cost in counted if cost.price is None})
    if limits and free and len(free) == len({cost.calls.kind for cost in counted}):
        found.problem(
            f"{limits[0]} is set, and no call has a price: {', '.join(free)}",
            why="nothing counts towards the limit, so that it never stops anything",
            key=f"budget.prices.{free[0]}",
        )
    for short in overruns(case.plan):
        if short.kind in ("money", "calls"):
            knobs = [knob for knob in helpful(case.config, case.plan) if knob.of == short.kind]
            found.problem(
                f"the run may take {short.takes:.4g} of {short.kind}, and {short.said} allows {short.limit:g}",
                why="it would stop there (exit code 11)",
                key=knobs[0].text if knobs else short.said,
            )


async def _charged(case: Case, counts: Mapping[str, str]) -> dict[str, float | None]:
    """Kind of call -> the reward that one call takes from a right answer; None if an invented episode cannot tell."""
    environment = case.built.runner.environment
    if not environment.metrics:
        return dict.fromkeys(counts)
    reward: Reward = build_node("reward", case.config["reward"], judge=_Lenient())
    without = await _efficiency(reward, environment.metrics, (), ())
    found: dict[str, float | None] = {}
    for kind, metric in counts.items():
        own = {m for m in environment.metrics if kind in re.split(r"[_/]", m)}
        name = "search" if kind in ("web", "vdb") else kind
        call = ToolRecord(name=name, arguments={"retriever": kind}, outcome=Outcome.SUCCESS, turn=0)
        total = await _efficiency(reward, environment.metrics, {metric, *own, *OF_EVERY_CALL}, [call])
        found[kind] = None if total is None or without is None else without - total
    return found


async def _efficiency(
    reward: Reward, metrics: Collection[str], ones: Collection[str], calls: Sequence[ToolRecord]
) -> float | None:
    """The search-efficiency reward of an invented episode with the metrics in `ones` at 1 and the others at 0; None if
    the reward needs a real episode."""
    task = Task(id="invented", messages=(), references=())
    episode = Episode(
        task=task,
        sample_index=0,
        branches=(),
        answer="invented",
        exit=Exit.ANSWERED,
        metrics={name: float(name in ones) for name in metrics},
        tool_records=tuple(calls),
    )
    try:
        [result] = (await reward.score(EpisodeGroup(task=task, episodes=(episode,)))).rewards
    except (LookupError, ValueError, TypeError):  # a term that reads more of the episode
        return None
    return None if result is None else result.dimensions[SEARCH_EFFICIENCY]
