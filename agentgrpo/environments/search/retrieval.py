"""Sends the queries of one episode to retrievers and reranker: concurrency, cache, and vdb in place of a failed web."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import RetrieverError, boundary
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Passage
from agentgrpo.environments.search.grammar import Query, clean, normalise_query
from agentgrpo.retrieval.base import Reranker, Retriever
from agentgrpo.services.budget import OVER_BUDGET

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
CacheKey: TypeAlias = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class QueryResult:
    """The result of one query: single-line passages, best first, at most top_k, reranked if `reranked`."""

    passages: list[Passage]
    served: str
    """The retriever that answered; "vdb" for a web query if web is missing or failed."""
    cached: bool
    reranked: bool = False
    detail: str = ""
    asked: tuple[str, ...] = ()
    """The retrievers that were asked, cached or not: both for a web query whose web search failed."""
    shortfalls: tuple[str, ...] = ()
    """Names in observations.SHORTFALLS. Without web, vdb serves the query; without vdb, nothing is found; without
    rerank, the order stays."""


class Retrieval:
    """The retrieval of one episode. Results are cached by (serving retriever, normalised query); failures are not.

    A vdb failure is raised as RetrieverError; a web failure is logged and its query is served by vdb. A request over
    the episode's budget is no failure: see QueryResult.shortfalls. Results do not depend on the order in which
    concurrent requests return.
    """

    def __init__(
        self,
        *,
        retrievers: Mapping[str, Retriever],
        reranker: Reranker | None,
        top_k: int,
        rerank_candidates: int,
        max_concurrent: int,
    ) -> None:
        self._retrievers, self._reranker = retrievers, reranker
        self._top_k, self._candidates = top_k, rerank_candidates
        self._live = asyncio.Semaphore(max_concurrent)
        self._cache: dict[CacheKey, tuple[int, list[Passage]]] = {}

    async def search(self, queries: Sequence[Query]) -> list[QueryResult]:
        """Return one QueryResult per query, in order. Sends the uncached queries concurrently, then the fallbacks, then
        the reranks."""
        names = [q.retriever if q.retriever in self._retrievers else "vdb" for q in queries]
        found, errors = await self._look_up(queries, names)
        failed = {i: e for i, name in enumerate(names) if (e := errors.get(_key(name, queries[i]))) is not None}
        for i, error in failed.items():
            if error.kind == OVER_BUDGET:
                found[i].shortfalls = (names[i],)
            elif names[i] != "web":
                raise error
            else:
                found[i].shortfalls = ("web failed",)
                _LOG.warning("web search failed (%s), served by vdb: %s", error.kind, error)
        if unserved := [i for i in failed if names[i] == "web"]:
            again, errors = await self._look_up([queries[i] for i in unserved], ["vdb"] * len(unserved))
            for i, row in zip(unserved, again, strict=True):
                row.detail, row.shortfalls = f"web failed: {failed[i].kind}", found[i].shortfalls
                row.asked = (*found[i].asked, *row.asked)
                if (why := errors.get(_key("vdb", queries[i]))) is not None:
                    if why.kind != OVER_BUDGET:
                        raise why
                    row.shortfalls += ("vdb",)
                found[i] = row
        await _all([self._rerank(q, f) for q, f in zip(queries, found, strict=True) if self._may_rerank(q, f)])
        return found

    async def rerank(self, query: str, passages: Sequence[Passage]) -> list[Passage] | None:
        """Return the best top_k of `passages`; None without a reranker or with fewer than two passages. Raises
        RetrieverError, also over_budget."""
        if self._reranker is None or len(passages) < 2:
            return None
        async with self._live:
            with boundary(RetrieverError, "reranker"), calling(Stage.TOOLS):
                return await self._reranker.rerank(query, passages, top_k=self._top_k)

    def _may_rerank(self, query: Query, found: QueryResult) -> bool:
        return query.rerank and self._reranker is not None and len(found.passages) >= 2

    async def _rerank(self, query: Query, found: QueryResult) -> None:
        try:
            found.passages = list(await self.rerank(query.text, found.passages) or ())
            found.reranked = True
        except RetrieverError as e:
            if e.kind != OVER_BUDGET:
                raise
            found.passages = found.passages[: self._top_k]
            found.shortfalls += ("rerank",)

    def _wanted(self, query: Query) -> int:
        return self._candidates if query.rerank and self._reranker is not None else self._top_k

    async def _look_up(
        self, queries: Sequence[Query], names: Sequence[str]
    ) -> tuple[list[QueryResult], dict[CacheKey, RetrieverError]]:
        """Return a result for every query (empty if its request failed) and the failures. Equal requests are made
        once."""
        requests: dict[CacheKey, tuple[str, int]] = {}
        cached: list[bool] = []
        for query, name in zip(queries, names, strict=True):
            key, wanted = _key(name, query), self._wanted(query)
            known = self._cache[key][0] if key in self._cache else 0
            cached.append(known >= wanted or key in requests)
            if known < wanted:
                text, asked = requests.get(key, (query.text, 0))
                requests[key] = (text, max(asked, wanted))
        rows = await _all([self._request(name, text, k) for (name, _), (text, k) in requests.items()])
        errors: dict[CacheKey, RetrieverError] = {}
        for (key, (_, k)), row in zip(requests.items(), rows, strict=True):
            if isinstance(row, RetrieverError):
                errors[key] = row
            else:
                self._cache[key] = (k, row)
        found = [
            QueryResult(
                passages=self._cache.get(_key(name, q), (0, []))[1][: self._wanted(q)],
                served=name,
                cached=hit,
                shortfalls=() if q.retriever in self._retrievers else ("no web",),
                asked=() if _is_refused(errors.get(_key(name, q))) else (name,),
            )
            for q, name, hit in zip(queries, names, cached, strict=True)
        ]
        return found, errors

    async def _request(self, name: str, text: str, top_k: int) -> list[Passage] | RetrieverError:
        async with self._live:
            try:
                with boundary(RetrieverError, f"retriever {name}"), calling(Stage.TOOLS):
                    found = (await self._retrievers[name].search(text, top_k=top_k))[:top_k]
                    return await off_loop(lambda: [clean(p) for p in found], size=sum(len(p.text) for p in found))
            except RetrieverError as error:
                return error


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, in order. The first error is raised after every call has ended, so that no call outlives the
    episode."""
    if len(calls) == 1:  # needs no task of its own
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    # Read from the tasks, not from gather's result: a call may return an exception as its result.
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _is_refused(error: RetrieverError | None) -> bool:
    return error is not None and error.kind == OVER_BUDGET


def _key(name: str, query: Query) -> CacheKey:
    return (name, normalise_query(query.text))
