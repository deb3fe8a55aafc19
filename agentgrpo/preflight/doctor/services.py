"""Whether the run's services answer: retrievers, reranker, pages, tools and the judge, a few requests each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

from agentgrpo.core.errors import AgentGrpoError, EpisodeError, RetrieverError
from agentgrpo.core.types import Outcome, Passage, Task, ToolCall
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.environments.tools.environment import ToolEnvironments
from agentgrpo.preflight.doctor.case import Case, key_in, told
from agentgrpo.preflight.doctor.examples import TEXTS, arguments_of
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.retrieval.base import Probed
from agentgrpo.run.judging import probe_judge, single
from agentgrpo.run.services import IN_PROCESS
from agentgrpo.services.cassette import CassetteMiss

PROBES, PAID_PROBES = 8, 2
"""Requests to each service, and to each service that queries the open web."""
GIVE_UP = 2
"""Failures after which a service that never answered gets no more requests."""
T = TypeVar("T")


@dataclass(slots=True)
class Probes(Generic[T]):
    """The results of requests sent one after another."""

    answers: list[T] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        asked = len(self.answers) + len(self.errors)
        return {
            "probes": asked,
            "error rate": round(len(self.errors) / asked, 3) if asked else 0.0,
            "p50 s": round(median(self.seconds), 4) if self.seconds else None,
            "max s": round(max(self.seconds), 4) if self.seconds else None,
        }


async def probe(requests: Sequence[Callable[[], Awaitable[T]]]) -> Probes[T]:
    """Send each request once and time it; stop early if none succeeds."""
    probes: Probes[T] = Probes()
    for request in requests:
        began = time.perf_counter()
        try:
            answer = await request()
        except (EpisodeError, TimeoutError, OSError) as error:
            probes.errors.append(told(error))
            if len(probes.errors) >= GIVE_UP and not probes.answers:
                break
            continue
        probes.seconds.append(time.perf_counter() - began)
        probes.answers.append(answer)
    return probes


def _tasks(case: Case, count: int) -> Sequence[Task]:
    return case.built.dataset.split("train")[:count]


async def look_at_retrievers(case: Case, found: CheckNotes) -> None:
    """Search with questions of the training set."""
    retrievers = case.built.equipment.retrievers
    if not retrievers:
        raise Skipped("nothing is searched")
    web = (case.config["retriever"].get("web") or {}).get("name", "none")
    for name, retriever in retrievers.items():
        key = "retriever.web" if name == "web" and web != "none" else "retriever.name"
        try:
            if isinstance(retriever, Probed):
                await retriever.probe()
        except AgentGrpoError as error:
            found.problem(f"{name} does not answer: {told(error)}", why=_WHY_SEARCH, key=key_in(told(error)) or key)
            found.facts[name] = {"probes": 1, "error rate": 1.0}
            continue
        count = PAID_PROBES if key == "retriever.web" else PROBES
        queries = list(dict.fromkeys(task.question[:500] for task in _tasks(case, count)))
        probes = await probe([_search(retriever, query) for query in queries])
        found.facts[name] = probes.facts() | {"passages": sum(map(len, probes.answers))}
        _failed(name, probes, found, why=_WHY_SEARCH, key=key)
        if probes.answers and not any(probes.answers):
            found.problem(f"{name} finds nothing for {len(queries)} questions", why=_WHY_SEARCH, key=key)


_WHY_SEARCH = "episodes fail, or their searches come back empty, and the policy learns not to search"


def _search(retriever: Any, query: str) -> Callable[[], Awaitable[list[Passage]]]:
    async def ask() -> list[Passage]:
        passages: list[Passage] = await retriever.search(query, top_k=5)
        return passages

    return ask


def _failed(name: str, probes: Probes[Any], found: CheckNotes, *, why: str, key: str) -> None:
    if probes.errors:
        asked = len(probes.errors) + len(probes.answers)
        found.problem(
            f"{name} failed {len(probes.errors)} of {asked} requests; the first: {probes.errors[0]}", why=why, key=key
        )


async def look_at_rerankers(case: Case, found: CheckNotes) -> None:
    """The reranker on the results of a search, and the pages that passages link to."""
    environment = case.built.runner.environment
    if not isinstance(environment, SearchOptions) or (environment.reranker is None and environment.fetcher is None):
        raise Skipped("nothing is reranked and no page is fetched")
    task = _tasks(case, 1)[0]
    try:
        passages = await environment.retrievers["vdb"].search(task.question, top_k=environment.rerank_candidates)
    except RetrieverError as error:
        raise Skipped("needs: retrievers, which do not answer") from error
    if (reranker := environment.reranker) is not None:
        free = case.config["environment"]["reranker"]["name"] in IN_PROCESS["reranker"]
        count = PROBES if free else PAID_PROBES

        async def rerank() -> list[Passage]:
            return await reranker.rerank(task.question, passages, top_k=environment.top_k)

        probes = await probe([rerank] * count)
        found.facts["reranker"] = probes.facts()
        _failed("the reranker", probes, found, why=_WHY_SEARCH, key="environment.reranker.name")
    if (fetcher := environment.fetcher) is not None:
        urls = [p.url for p in passages if p.url][:PAID_PROBES]

        async def fetch() -> list[Passage | RetrieverError]:
            return await fetcher.fetch(urls)

        pages = await probe([fetch] if urls else [])
        found.facts["pages"] = pages.facts() | {"urls": len(urls)}
        _failed(
            "the page fetcher", pages, found, why="a fetched page is what the policy reads", key="environment.fetcher"
        )
        wrong = [p for answer in pages.answers for p in answer if isinstance(p, RetrieverError)]
        if wrong and len(wrong) == len(urls):
            found.problem(
                f"none of {len(urls)} pages could be fetched; the first: {told(wrong[0])}",
                why="every fetch of the policy would fail",
                key="environment.fetcher.name",
            )


async def look_at_tools(case: Case, found: CheckNotes) -> None:
    """Call every tool a few times with invented arguments, as an untrained policy would. A tool may refuse a call, but
    it must not fail."""
    built = case.built
    environment = built.runner.environment
    if not isinstance(environment, ToolEnvironments) or not environment.tools:
        raise Skipped("no tools are called")
    task = _tasks(case, 1)[0]
    used = _used(case)
    for name, tool in environment.tools.items():
        outcomes: Counter[str] = Counter()
        seconds: list[float] = []
        broke = ""
        for variant in range(len(TEXTS)):
            call = ToolCall(name=name, arguments=arguments_of(tool.spec.parameters, variant))
            try:
                async with environment.workspaces.open(task, seed=f"doctor|{name}|{variant}") as workspace:
                    _, record = await environment.toolbox.call(call, workspace, turn=0)
            except CassetteMiss:  # no cassette holds a made-up call
                outcomes["not on the cassette"] += 1
                continue
            except EpisodeError as error:
                broke = told(error)
                outcomes["failed"] += 1
                continue
            outcomes[record.outcome] += 1
            seconds.append(record.seconds)
        found.facts[name] = {
            "outcomes": dict(outcomes),
            "error rate": round((outcomes["failed"] + outcomes[Outcome.TIMEOUT]) / len(TEXTS), 3),
            "p50 s": round(median(seconds), 4) if seconds else None,
            "max s": round(max(seconds), 4) if seconds else None,
            "in the episodes": dict(used.get(name, {})),
        }
        _tool_findings(name, outcomes, used.get(name, Counter()), broke, found)


def _used(case: Case) -> dict[str, Counter[str]]:
    """Tool name -> outcomes of the calls in the sampled episodes."""
    used: dict[str, Counter[str]] = {}
    try:
        episodes = case.episodes
    except Skipped:
        return used
    for record in (r for e in episodes for r in e.tool_records):
        used.setdefault(record.name, Counter())[record.outcome] += 1
    return used


def _tool_findings(
    name: str, outcomes: Mapping[str, int], used: Mapping[str, int], broke: str, found: CheckNotes
) -> None:
    key = f"tools.{name}"
    if broke:
        found.problem(
            f"{name} failed {outcomes['failed']} of {len(TEXTS)} calls, and not by the policy's fault: {broke}",
            why="such a failure ends the episode, and its whole group is not trained on",
            key=key,
        )
    if outcomes.get(Outcome.TIMEOUT):
        found.problem(
            f"{name} was not done in time in {outcomes[Outcome.TIMEOUT]} of {len(TEXTS)} calls",
            why="every such call waits for the whole of environment.tool_timeout_s, and the policy learns to leave it",
            key="environment.tool_timeout_s",
        )
    total = sum(used.values())
    if total >= 3 and used.get(Outcome.RUNTIME_ERROR, 0) == total:
        found.note(
            f"all {total} calls of {name} in the episodes ended in an error of the tool",
            why="either no policy can use it as it is told to, or it is broken",
            key=key,
        )


async def look_at_judge(case: Case, found: CheckNotes) -> None:
    """Right answers of the training set, with one request each."""
    built = case.built
    if "judge" in case.broken:
        raise Skipped("needs: judge, which could not be built")
    for note in await probe_judge(built.judge):
        found.note(note, why="what is not kept would fail", key="judge.completer")
    judge, tasks = single(built.judge, _tasks(case, PROBES))
    answered = [task for task in tasks if task.references][:PROBES]
    if not answered:
        raise Skipped("no task has a reference to ask the judge about")

    def asking(task: Task) -> Callable[[], Awaitable[float]]:
        async def ask() -> float:
            return (await judge.grade(task, [task.references[0]]))[0].score

        return ask

    probes = await probe([asking(task) for task in answered])
    found.facts |= probes.facts() | {"grades of right answers": probes.answers}
    _failed("the judge", probes, found, why="an answer without a grade is not trained on", key="judge.name")
