"""Maximum number of calls by an episode and its grading that leave the run or cost something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.preflight.plan.device import BOUND, ESTIMATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCalls:
    """Calls of one kind. basis: a bound, or an estimate if no setting bounds them."""

    kind: str
    """The budget's name for it: vdb | web | rerank | fetch | mcp | judge | reader | validity; or tool."""
    where: str
    """The configuration node that makes the calls."""
    per_episode: float
    per_evaluation: float
    """Calls for one evaluation episode: the judge also grades the answer against another task."""
    basis: str = BOUND
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Numbers of episodes, without retries of failed ones."""

    of_step: int
    trained: int
    """Episodes of all steps."""
    evaluated: int
    """Episodes of all evaluations."""


def episodes_of(run: RunSettings, rollout: RolloutSettings) -> Episodes:
    """Maximum numbers of episodes: every step draws all its refill rounds."""
    of_step = rollout.tasks_per_step * rollout.group_size * (1 + rollout.refill_rounds)
    tested = 2 * run.eval.tasks * (1 + run.eval.samples_per_task) if run.final_eval else 0
    developed = (run.max_steps // run.eval_every + 1) * run.eval_tasks if run.eval_every else 0
    return Episodes(of_step=of_step, trained=run.max_steps * of_step, evaluated=tested + developed)


def calls_of(config: Mapping[str, Any], *, turns: float, questions: float) -> list[PlannedCalls]:
    """Every kind of call that this configuration makes."""
    return [*_agents(config, turns, questions), *_judges(config, questions)]


def _agents(config: Mapping[str, Any], turns: float, questions: float) -> Iterator[PlannedCalls]:
    environment, allowed = config["environment"], config["budget"]["per_episode"]["calls"]
    if "max_search_limit" in environment:
        limit = environment["max_turns"] if environment["max_search_limit"] is None else environment["max_search_limit"]
        grows = bool(environment["search_budget_per_subquestion"])
        most = max(limit, environment["max_search_limit_cap"]) if grows else limit
        said = f"environment.max_search_limit_cap={most}" if most > limit else f"environment.max_search_limit={limit}"
        yield from _searches(config, most, said, BOUND)
        if environment["reranker"]["name"] not in ("none", "lexical"):
            yield _bounded("rerank", "environment.reranker", most, "one a search", BOUND, allowed)
        if environment["fetcher"]["name"] != "none":
            pages = environment["max_turns"] * environment["max_url_fetch"]  # a forced answer fetches no page
            yield _bounded(
                "fetch", "environment.fetcher", pages, "environment.max_turns x max_url_fetch", BOUND, allowed
            )
    elif "parallel_calls" in environment and config["tools"]:
        yield from _tools(config, turns)
    reader, validity = environment.get("reader") or {}, environment.get("validity") or {}
    if "completer" in reader:
        of_question = reader["max_searches"] + 2 if "max_searches" in reader else 1
        note = f"{questions:.3g} questions x {of_question}"
        yield _bounded("reader", "environment.reader", questions * of_question, note, BOUND, allowed)
    if "completer" in validity:
        each = environment["max_calls"] * (1 + validity["verdict_retries"])
        note = f"{turns:.3g} chunks x {each}"
        yield _bounded("validity", "environment.validity", turns * each, note, BOUND, allowed)


def _tools(config: Mapping[str, Any], turns: float) -> Iterator[PlannedCalls]:
    names = [node.get("name", key) for key, node in config["tools"].items()]
    count = config["environment"]["max_calls"]
    basis, said = (
        (BOUND, "environment.max_calls")
        if count is not None
        else (ESTIMATE, "one a turn: environment.max_calls bounds them")
    )
    most, allowed = turns if count is None else count, config["budget"]["per_episode"]["calls"]
    yield _bounded("tool", "tools", most, f"of {', '.join(config['tools'])}; {said}", basis, allowed)
    if "search" in names:
        yield from _searches(config, most, said, basis)
    if "fetch" in names:
        yield _bounded("fetch", "tools.fetch", most, said, basis, allowed)
    if "mcp" in names:
        yield _bounded("mcp", "tools.mcp", most, said, basis, allowed)


def _searches(config: Mapping[str, Any], most: float, said: str, basis: str) -> Iterator[PlannedCalls]:
    """The searches may all be of either kind, so each kind gets the whole limit."""
    web, allowed = (config["retriever"].get("web") or {}).get("name", "none"), config["budget"]["per_episode"]["calls"]
    yield _bounded("vdb", "retriever", most, said, basis, allowed)
    if web != "none":
        yield _bounded("web", "retriever.web", most, f"{said}, in place of the others", basis, allowed)


def _judges(config: Mapping[str, Any], questions: float) -> Iterator[PlannedCalls]:
    """Calls of each judge node that asks a model; each node of a router counts as if it graded every answer."""
    answers = questions if any(n.get("name") in ("questions", "questions_by_metric") for n in _nodes(config)) else 1.0
    for path, node, claims in _asking(config["judge"], "judge"):
        controls = (1 if claims is None else 2) * bool(node.get("control"))  # a claim's passages have their own control
        votes = (node.get("repeats", 1) + controls) * (1 + node.get("verdict_retries", 0))
        note = f"{answers:.3g} answers x {votes}"
        if claims is not None:  # an answer to another question is graded without its citations
            note = f"{answers:.3g} answers x {claims} claims x {votes}"
        most = answers * votes * (1 if claims is None else claims)
        yield PlannedCalls(
            kind="judge", where=path, per_episode=most, per_evaluation=most * (2 if claims is None else 1), note=note
        )


def _nodes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    def walk(node: Any) -> Iterator[Mapping[str, Any]]:
        if isinstance(node, Mapping):
            yield node
            for child in node.values():
                yield from walk(child)

    yield from walk(config["judge"])


def _asking(node: Any, path: str, claims: int | None = None) -> Iterator[tuple[str, Mapping[str, Any], int | None]]:
    """(path, node, number of claims per answer that the node grades; None = it grades the answer)."""
    if isinstance(node, Mapping):
        if "completer" in node:
            yield path, node, claims
        else:
            for key, child in node.items():
                yield from _asking(child, f"{path}.{key}", node.get("max_claims") if key == "support" else None)


def _bounded(
    kind: str, where: str, count: float, note: str, basis: str, allowed: Mapping[str, int | None]
) -> PlannedCalls:
    """allowed: budget.per_episode.calls; further calls of a kind are refused."""
    limit = allowed.get(kind)
    if limit is not None and limit < count:
        count, note, basis = limit, f"budget.per_episode.calls.{kind}={limit}", BOUND
    return PlannedCalls(
        kind=kind, where=where, per_episode=float(count), per_evaluation=float(count), note=note, basis=basis
    )
