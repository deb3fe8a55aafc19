"""Retrieval servers over HTTP: search, pages, reranking.

A call ends within `timeout_s` of the arrival of its first query, with a result or a RetrieverError whose `kind` names
the failure, whatever the server does. The deadline includes waiting for a slot and everything the client does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agentgrpo.core.concurrency import Batcher, Limiter
from agentgrpo.core.errors import ConfigError, RetrieverError, did_you_mean
from agentgrpo.core.types import Passage
from agentgrpo.retrieval import wire
from agentgrpo.retrieval.apart import Row, answered_apart
from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.corpus import searchable_text
from agentgrpo.services.client import JsonClient, shown
from agentgrpo.services.secret import Secret

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Endpoint(ABC):
    """One URL of a server. timeout_s spans a whole call, from the arrival of its first query; retries, backoff_s and
    the kinds of failure are those of JsonClient. At most max_concurrent calls are open, first come first served.
    api_key_env: the environment variable with the server's key, sent as a Bearer token; None = no key is sent.

    `counts`: those of JsonClient; garbage also counts single rows, and page counts pages that the server could not
    fetch.
    """

    _max_batch = 1
    _part: str
    """The part's name in the configuration."""

    def __init__(
        self,
        *,
        url: str,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
        api_key_env: str | None = None,
    ) -> None:
        self._client = JsonClient(
            url=url,
            error=RetrieverError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=(Secret(api_key_env),) if api_key_env else (),
            setting=f"{self._part}.timeout_s",
        )
        self.identity = f"{type(self).__name__} {urlsplit(url).path}"  # a server may have an index under each path
        self.counts = self._client.counts
        self._batcher: Batcher[Any, Any, Any] = Batcher(
            self._answer, max_batch=self._max_batch, limiter=Limiter(max_concurrent)
        )

    async def close(self) -> None:
        """Close the client of the running event loop; the next call would open another."""
        await self._client.close()

    @abstractmethod
    async def _answer(self, group: Any, keys: list[Any], arrived: float) -> Sequence[Any]: ...

    async def _post(self, payload: object, arrived: float, read: Callable[[Any], T]) -> T:
        """Post `payload` and apply `read` to the parsed reply. Raises RetrieverError."""
        return await self._client.post(payload, read, arrived=arrived)

    def _count(self, outcomes: Sequence[object]) -> None:
        """Count and log the failed rows of an otherwise valid reply."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, RetrieverError)]
        self.counts.update(error.kind for error in errors)
        if errors:
            shown = self._client.shown
            logger.warning("%s: %d of %d rows failed, first: %s", shown, len(errors), len(outcomes), errors[0])


class HttpRetriever(_Endpoint):
    """A server with the /retrieve protocol (see `wire`). With protocol "batch", queries that arrive together share
    requests of at most max_batch queries; with "single", each query has its own request. A refused request (4xx) is
    sent again in halves, so that only the query at fault fails."""

    _part = "retriever"

    def __init__(
        self,
        *,
        url: str,
        protocol: str = "batch",
        max_batch: int = 128,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
        api_key_env: str | None = None,
    ) -> None:
        if protocol not in ("batch", "single"):
            hint = did_you_mean(protocol, ("batch", "single"))
            raise ConfigError(f"protocol={protocol!r}; allowed are batch and single.{hint}")
        self._single = protocol == "single"
        self._max_batch = 1 if self._single else max_batch
        super().__init__(
            url=url,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            api_key_env=api_key_env,
        )

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        row: list[Passage] = await self._batcher.ask(top_k, query)
        return list(row)

    async def _answer(self, group: int, keys: list[str], arrived: float) -> list[Row]:
        return await answered_apart(lambda queries: self._ask(queries, group, arrived), keys)

    async def _ask(self, queries: list[str], top_k: int, arrived: float) -> list[Row]:
        if self._single:
            payload: dict[str, object] = {"query": queries[0], "top_k": top_k}
            rows = await self._post(payload, arrived, lambda reply: [wire.row_of(wire.results_of(reply), top_k)])
        else:
            payload = {"queries": queries, "topk": top_k, "return_scores": True}
            rows = await self._post(payload, arrived, lambda reply: wire.rows_of(reply, len(queries), top_k))
        self._count(rows)
        return rows


class HttpPageFetcher(_Endpoint):
    """A server that fetches pages: POST /fetch. URLs that arrive together share a request."""

    _max_batch = 16
    _part = "fetcher"

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        asked = (self._batcher.ask(None, url) for url in urls)
        pages: list[Passage | BaseException] = await asyncio.gather(*asked, return_exceptions=True)
        for page in pages:
            if not isinstance(page, Passage | RetrieverError):
                raise page
        return pages  # type: ignore[return-value]  # narrowed by the loop

    async def _answer(self, group: None, keys: list[str], arrived: float) -> list[Passage | RetrieverError]:
        pages = await self._post({"urls": keys}, arrived, lambda reply: wire.pages_of(reply, keys))
        self._count(pages)
        return pages


class HttpReranker(_Endpoint):
    """A server that scores documents against a query: POST /rerank. Equal scores keep their order."""

    _part = "reranker"

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        if not passages:
            return []
        documents = tuple(searchable_text(p) for p in passages)
        scores: list[float] = await self._batcher.ask(None, (query, documents))
        scored = [dataclasses.replace(p, score=score) for p, score in zip(passages, scores, strict=True)]
        return sorted(scored, key=lambda p: -(p.score or 0.0))[:top_k]

    async def _answer(self, group: None, keys: list[tuple[str, tuple[str, ...]]], arrived: float) -> list[list[float]]:
        [(query, documents)] = keys
        payload = {"query": query, "documents": documents, "top_k": len(documents)}
        return [await self._post(payload, arrived, lambda reply: wire.scores_of(reply, len(documents)))]


def remote(
    *,
    url: str,
    web_url: str | None = None,
    protocol: str = "batch",
    max_batch: int = 128,
    timeout_s: float = 10.0,
    retries: int = 3,
    backoff_s: float = 0.5,
    max_concurrent: int = 8,
    max_response_bytes: int = 2 * 2**20,
    trust_env: bool = True,
    api_key_env: str | None = None,
    web: Retriever | None = None,
) -> dict[str, Retriever]:
    """`retriever: http`: the server at `url` as "vdb", and the server at `web_url`, or else `web`, as "web" if given.
    The key in the environment variable `api_key_env` is sent to the server at `url`; `web_url` gets it too if it is on
    that server. Raises ConfigError if both web_url and web are given."""
    if web is not None and web_url is not None:
        raise ConfigError(f"web_url={shown(web_url)} and retriever.web are two searches of the web; leave one out")
    addresses = {"vdb": url} if web_url is None else {"vdb": url, "web": web_url}
    found: dict[str, Retriever] = {
        name: HttpRetriever(
            url=address,
            protocol=protocol,
            max_batch=max_batch,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            api_key_env=api_key_env if urlsplit(address)[:2] == urlsplit(url)[:2] else None,
        )
        for name, address in addresses.items()
    }
    return found if web is None else {**found, "web": web}
