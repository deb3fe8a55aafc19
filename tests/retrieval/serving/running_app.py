"""A real server on a loopback port, and clients that are not ours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Reranker, Retriever
from agentgrpo.retrieval.server.app import RetrievalApp
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.retrieval.server.running import listening, serve, url_of
from agentgrpo.services.gate import Gate


class Scripted:
    """A backend for tests: `answer(query)` is the row of every query; it keeps the batches that it is asked."""

    def __init__(self, answer: Callable[[str], list[Passage] | RetrieverError]) -> None:
        self.answer = answer
        self.batches: list[list[str]] = []

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        self.batches.append(list(queries))
        rows = [self.answer(query) for query in queries]
        return [row if isinstance(row, RetrieverError) else row[:top_k] for row in rows]


@asynccontextmanager
async def served(
    retrievers: Mapping[str, Retriever],
    reranker: Reranker | None = None,
    *,
    limits: RequestLimits | None = None,
    gate: Gate | None = None,
    log_every: int = 1000,
    say: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[tuple[str, RetrievalApp]]:
    """Its address and the application; on leaving it is stopped as an operator would, by SIGTERM."""
    app = RetrievalApp(retrievers, reranker, limits=limits, log_every=log_every, say=say)
    ready = asyncio.Event()
    with listening("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(
            serve(app.asgi, bound, gate=gate or Gate(), limits=limits or RequestLimits(), grace_s=5, ready=ready.set)
        )
        await asyncio.wait((asyncio.ensure_future(ready.wait()), serving), return_when=asyncio.FIRST_COMPLETED)
        try:
            yield url_of(bound), app
        finally:
            if bound.fileno() != -1:  # nobody has stopped it yet
                os.kill(os.getpid(), signal.SIGTERM)
            await serving
            for retriever in retrievers.values():
                await retriever.close()


async def ask(url: str, body: object, method: str = "POST") -> tuple[int, Any, Mapping[str, str]]:
    """Status, parsed body and headers, by the standard library's client in a thread."""
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    return await asyncio.to_thread(_ask, urllib.request.Request(url, data, method=method))


def _ask(request: urllib.request.Request) -> tuple[int, Any, Mapping[str, str]]:
    request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return response.status, json.loads(response.read()), dict(response.headers)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read()), dict(e.headers)


def passages2string(retrieval_result: Any) -> str:
    """What the policy of Search-R1 sees of a row: its llm_agent/generation.py reads exactly these fields."""
    text = ""
    for number, item in enumerate(retrieval_result, 1):
        content = item["document"]["contents"]
        title, rest = content.split("\n")[0], "\n".join(content.split("\n")[1:])
        text += f"Doc {number}(Title: {title}) {rest}\n"
    return text
