"""The retrieval server as an ASGI application, over any retrievers and reranker.

    POST /retrieve          the retriever "vdb"             POST /rerank    the reranker
    POST /web/retrieve      the retriever "web", if any     GET  /health    {"status": "ok", ...}

`wire` defines requests and answers. The queries of all open requests go to the retriever as they arrive, and the
retriever makes batches of them. Errors are {"error": text}, with status 4xx for the client's errors and 5xx for the
server's. A query of a batch that is refused (too long, no text) or fails alone has {"error": text} in place of its row.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import AgentGrpoError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Reranker, Retriever
from agentgrpo.retrieval.server.questions import (
    RequestLimits,
    RequestRefused,
    SearchRequest,
    asked_again,
    ranking_document,
    row_of,
    search_of,
)
from agentgrpo.retrieval.server.questions import ranking_of as ranking_asked

# --- Counts of requests, logged in one line for many requests.


class Traffic:
    """Counts requests and their seconds (`now`), and passes a line to `say` after every `log_every` requests.

    counts: requests, queries, refused (the client's fault), failed (the server's).
    """

    def __init__(
        self, *, limits: RequestLimits, log_every: int, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self.counts: Counter[str] = Counter(requests=0, queries=0, refused=0, failed=0)
        self.waiting = 0
        self._most_waiting = 0
        self._limits = limits
        self._log_every = log_every
        self._now, self._say = now, say
        self._seconds: list[float] = []
        self._before = self.counts.copy()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count and time a request, from the first byte of its body to its answer."""
        began = self._now()
        try:
            yield
        except RequestRefused as e:
            self.counts["failed" if e.status == 500 else "refused"] += 1
            raise
        except Exception:
            self.counts["failed"] += 1
            raise
        finally:
            self.counts["requests"] += 1
            self._seconds.append(self._now() - began)
            if len(self._seconds) == self._log_every:
                self._say(self._line())

    @contextmanager
    def queries(self, number: int) -> Iterator[None]:
        """Count queries while they are answered. Raises RequestRefused (503) if too many are waiting already."""
        if self.waiting and self.waiting + number > self._limits.waiting:
            raise RequestRefused(503, f"{self.waiting} queries are waiting already; retry in a second")
        self.counts["queries"] += number
        self.waiting += number
        self._most_waiting = max(self._most_waiting, self.waiting)
        try:
            yield
        finally:
            self.waiting -= number

    def _line(self) -> str:
        """The log line for the requests since the previous one."""
        seconds, new = sorted(self._seconds), self.counts - self._before
        self._seconds, self._before = [], self.counts.copy()
        most, self._most_waiting = self._most_waiting, self.waiting
        p50, p99 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        return (
            f"{new['requests']} requests, {new['queries']} queries, p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, "
            f"at most {most} queries at once, {new['refused']} refused, {new['failed']} failed"
        )


Answer = Callable[[bytes], Awaitable[Any]]


class RetrievalApp:
    """`asgi` is the application to serve. say: receives a line for every `log_every` requests."""

    def __init__(
        self,
        retrievers: Mapping[str, Retriever],
        reranker: Reranker | None = None,
        *,
        limits: RequestLimits | None = None,
        log_every: int = 1000,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._reranker = reranker
        self._limits = limits or RequestLimits()
        self.traffic = Traffic(limits=self._limits, log_every=log_every, now=time.perf_counter, say=say)
        self.paths = {
            "/retrieve" if name == "vdb" else f"/{name}/retrieve": self._searching(retriever)
            for name, retriever in retrievers.items()
        }
        if reranker is not None:
            self.paths["/rerank"] = self._rank
        self.asgi = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                *(Route(path, self._posted(answer), methods=["POST"]) for path, answer in self.paths.items()),
            ],
            exception_handlers={HTTPException: self._nothing_there},
        )

    def _posted(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                with self.traffic.request():
                    found = await answer(await self._body(request))
                    content = await asyncio.to_thread(_written, found)
                    return Response(content, media_type="application/json")
            except RequestRefused as e:
                headers = {"Retry-After": "1"} if e.status == 503 else {}
                return _json({"error": str(e)}, e.status, headers)

        return handle

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._limits.body_bytes:
                        raise RequestRefused(413, f"a body of more than {self._limits.body_bytes} bytes; send several")
        except TimeoutError as e:
            raise RequestRefused(408, f"no complete body within {self._limits.body_s:g} s") from e
        except ClientDisconnect as e:
            raise RequestRefused(400, "the client left before its body was in") from e
        return bytes(body)

    # --- searching

    def _searching(self, retriever: Retriever) -> Answer:
        async def search(body: bytes) -> Any:
            asked = await off_loop(partial(search_of, body, self._limits), size=len(body))
            with self.traffic.queries(len(asked.queries)):
                rows = await asyncio.gather(*(self._row(retriever, query, asked) for query in asked.queries))
            failed = [row for row in rows if isinstance(row, RequestRefused)]
            if failed and len(failed) == len(rows):
                raise max(failed, key=lambda refused: refused.status)  # server errors first: they may be temporary
            if asked.single:
                return {"results": rows[0]}
            return {"result": [{"error": str(row)} if isinstance(row, RequestRefused) else row for row in rows]}

        return search

    async def _row(
        self, retriever: Retriever, query: str | RequestRefused, asked: SearchRequest
    ) -> list[dict[str, Any]] | RequestRefused:
        if isinstance(query, RequestRefused):
            return query
        try:
            passages = await retriever.search(query, top_k=asked.top_k)
        except AgentGrpoError as e:
            return _failure(e)
        return row_of(passages, return_scores=asked.return_scores)

    # --- ranking

    async def _rank(self, body: bytes) -> Any:
        assert self._reranker is not None
        asked = await off_loop(partial(ranking_asked, body, self._limits), size=len(body))
        with self.traffic.queries(1):
            passages: list[Passage] = []
            if asked.documents:
                try:
                    passages = await self._reranker.rerank(asked.query, asked_again(asked.documents), top_k=asked.top_k)
                except AgentGrpoError as e:
                    raise _failure(e) from e
        return {"results": ranking_document(passages)}

    # --- anything else

    async def _health(self, request: Request) -> Response:
        """The server's status, its paths, and its counts."""
        paths = sorted(self.paths)
        return _json({"status": "ok", "paths": paths, "waiting": self.traffic.waiting, **self.traffic.counts})

    async def _nothing_there(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = ", ".join([*(f"POST {path}" for path in self.paths), "GET /health"])
        asked = f"{request.method} {request.url.path}"
        return _json({"error": f"{asked}: {error.detail}; allowed are {known}"}, error.status_code)


def _failure(error: AgentGrpoError) -> RequestRefused:
    """The refusal for an error: 422 if a service behind the retriever refused the query, since a retry would not help,
    else 500."""
    refused = isinstance(error, RetrieverError) and error.kind == "http_4xx"
    return RequestRefused(422 if refused else 500, " ".join(str(error).split()))


def _written(answer: Mapping[str, Any]) -> str:
    """Serialise like json.dumps, but a row at a time: a single long call would block all other threads, and so delay
    other answers."""
    if not isinstance(answer.get("result"), list):
        return json.dumps(answer)
    return f'{{"result": [{", ".join([json.dumps(row) for row in answer["result"]])}]}}'


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # Escaped to ASCII, so that no client can misread the encoding.
    return Response(json.dumps(content), status, headers, media_type="application/json")
