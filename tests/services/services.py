"""Services for tests, on real sockets, in threads of their own: they outlive the event loop of a command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentgrpo.retrieval.base import Retriever
from tests.retrieval.server import Behaviour, Server, say


@contextmanager
def in_a_thread(behaviour: Behaviour) -> Iterator[Server]:
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    servers: list[Server] = []

    async def serve() -> None:
        async with Server(behaviour) as server:
            servers.append(server)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield servers[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def stand_in(retriever: Retriever) -> Behaviour:
    """POST /retrieve, answered by `retriever`."""

    async def behave(request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        rows = [await retriever.search(query, top_k=request["topk"]) for query in request["queries"]]
        result = [
            [{"document": {"id": p.id, "title": p.title, "text": p.text}, "score": p.score} for p in row]
            for row in rows
        ]
        await say({"result": result})(request, writer)

    return behave


def queries_of(server: Server) -> list[str]:
    """Every query that has reached it."""
    return [query for request in server.requests for query in request["queries"]]
