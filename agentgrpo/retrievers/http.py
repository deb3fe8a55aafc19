"""Retrieval servers over HTTP: search, pages, reranking. The only importer of httpx.

A call ends within `timeout_s` of the moment its first query arrived, with a result or a RetrieverError whose `kind`
says what failed, whatever the server does. httpx's own timeouts are per read, which a slow drip outlives: they are off,
and one deadline spans waiting for a slot, every attempt and every pause between attempts. Bodies are asked for
uncompressed and refused otherwise: a few kilobytes of gzip can be gigabytes of text."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import ipaddress
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from agentgrpo.concurrency import Batcher, Limiter, PerLoop
from agentgrpo.errors import ConfigError, RetrieverError, did_you_mean
from agentgrpo.retrievers import wire
from agentgrpo.retrievers.base import Retriever
from agentgrpo.retrievers.corpus import searchable_text
from agentgrpo.types import Passage

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Endpoint(ABC):
    """One URL that takes JSON by POST.

    timeout_s spans a whole call. Up to `retries` further attempts follow on 429, 5xx and transport errors, never on
    anything else, after backoff_s * 2^attempt (half of it jitter) or the Retry-After the server asks for; an attempt
    that could not start before the deadline is not waited for. At most max_concurrent calls are live, first come first
    served.

    `counts`: requests (attempts), retries, and failures by kind: timeout, transport, http_3xx, http_4xx, http_429,
    http_500 (any 5xx), oversize, garbage (also single rows), page (a page the server could not fetch)."""

    _max_batch = 1

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
    ) -> None:
        host = _host(url)
        if not (timeout_s > 0 and retries >= 0 and backoff_s >= 0 and max_response_bytes > 0):
            raise ConfigError(
                f"{url}: timeout_s={timeout_s}, retries={retries}, backoff_s={backoff_s}, max_response_bytes="
                f"{max_response_bytes}; allowed are timeout_s > 0, retries >= 0, backoff_s >= 0, max_response_bytes > 0"
            )
        self.counts: Counter[str] = Counter()
        self._url = url
        self._shown = url.partition("?")[0]  # what follows may be a key, and messages end up in files
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._max_response_bytes = max_response_bytes
        self._trust_env = trust_env and not _is_loopback(host)  # no proxy can reach this machine's own loopback
        self._client = PerLoop(self._open)
        self._batcher: Batcher[Any, Any, Any] = Batcher(
            self._answer, max_batch=self._max_batch, limiter=Limiter(max_concurrent)
        )

    async def close(self) -> None:
        """Ends the running loop's client; the next call would open another."""
        client = self._client.pop()
        if client is not None:
            await client.aclose()

    @abstractmethod
    async def _answer(self, group: Any, keys: list[Any], arrived: float) -> Sequence[Any]: ...

    def _open(self) -> httpx.AsyncClient:
        # A connection per call: calls are batches and far between, and a connection that the server closed while it
        # idled would look like a failure of the next call. So nothing outlives its event loop either.
        return httpx.AsyncClient(
            headers={"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=self._trust_env,
        )

    async def _post(self, payload: object, arrived: float, read: Callable[[Any], T]) -> T:
        """`read` applied to the parsed reply. Raises RetrieverError."""
        deadline, call, attempt = arrived + self._timeout_s, self.counts["requests"], 0
        content = json.dumps(payload).encode()
        while True:
            retry_after: str | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    status, retry_after, body = await self._attempt(content)
                if not 200 <= status < 300:
                    raise RetrieverError(f"HTTP {status} {body[:200]!r}", kind=_kind(status))
                return read(wire.parse(body))
            except TimeoutError:
                error = RetrieverError(f"no complete reply within {self._timeout_s:g} s", kind="timeout")
            except RetrieverError as e:
                error = e
            self.counts[error.kind] += 1
            pause = self._pause(call, attempt, retry_after)
            late = asyncio.get_running_loop().time() + pause >= deadline
            if error.kind not in ("http_429", "http_500", "transport") or attempt == self._retries or late:
                error = RetrieverError(f"{self._shown}, attempt {attempt + 1}: {error}", kind=error.kind)
                logger.warning("%s", error)
                raise error
            attempt += 1
            self.counts["retries"] += 1
            await asyncio.sleep(pause)

    async def _attempt(self, content: bytes) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and body; of a refusal only the beginning of the body."""
        self.counts["requests"] += 1
        body = bytearray()
        try:
            async with self._client.get().stream("POST", self._url, content=content) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise wire.garbage(f"a body encoded as {response.headers['Content-Encoding']!r}, not asked for")
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self._max_response_bytes:
                        raise RetrieverError(f"more than {self._max_response_bytes} bytes", kind="oversize")
                    if not response.is_success:
                        break
                return response.status_code, response.headers.get("Retry-After"), bytes(body)
        except (httpx.HTTPError, OSError) as e:
            raise RetrieverError(f"{type(e).__name__}: {e}", kind="transport") from e

    def _pause(self, call: int, attempt: int, retry_after: str | None) -> float:
        """Seconds before the next attempt."""
        if retry_after is not None and retry_after.isdecimal():
            return float(retry_after)
        digest = hashlib.blake2b(f"{self._url} {call} {attempt}".encode(), digest_size=8).digest()
        jitter = int.from_bytes(digest, "big") / 2**64
        return self._backoff_s * 2.0 ** min(attempt, 16) * (1 + jitter) / 2

    def _count(self, outcomes: Sequence[object]) -> None:
        """Count and log what failed in a reply that was otherwise fine."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, RetrieverError)]
        self.counts.update(error.kind for error in errors)
        if errors:
            logger.warning("%s: %d of %d rows failed, first: %s", self._shown, len(errors), len(outcomes), errors[0])


class HttpRetriever(_Endpoint):
    """A server that speaks the /retrieve protocol (see `wire`). With protocol "batch", queries that arrive together go
    out in one request of at most max_batch; with "single", each in its own."""

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
        )

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        row: list[Passage] = await self._batcher.ask(top_k, query)
        return list(row)

    async def _answer(self, group: int, keys: list[str], arrived: float) -> list[list[Passage] | RetrieverError]:
        if self._single:
            payload: dict[str, object] = {"query": keys[0], "top_k": group}
            rows = await self._post(payload, arrived, lambda reply: [wire.row_of(wire.results_of(reply), group)])
        else:
            payload = {"queries": keys, "topk": group, "return_scores": True}
            rows = await self._post(payload, arrived, lambda reply: wire.rows_of(reply, len(keys), group))
        self._count(rows)
        return rows


class HttpPageFetcher(_Endpoint):
    """A server that fetches pages: POST /fetch. URLs that arrive together go out in one request."""

    _max_batch = 16

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
) -> dict[str, Retriever]:
    """`retriever: http`: the server at `url` as "vdb" and, where given, the one at `web_url` as "web"."""
    urls = {"vdb": url} if web_url is None else {"vdb": url, "web": web_url}
    return {
        name: HttpRetriever(
            url=url,
            protocol=protocol,
            max_batch=max_batch,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )
        for name, url in urls.items()
    }


def _kind(status: int) -> str:
    if status == 429:
        return "http_429"
    return {3: "http_3xx", 4: "http_4xx", 5: "http_500"}.get(status // 100, "garbage")


def _host(url: str) -> str:
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 80) < 65536:
            return parsed.host
    raise ConfigError(f"url={url!r}; allowed is an http or https URL such as http://localhost:8000/retrieve")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
