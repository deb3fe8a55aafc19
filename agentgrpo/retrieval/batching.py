"""Turns a synchronous backend into the async Retriever that agents use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agentgrpo.core.concurrency import Batcher, Limiter
from agentgrpo.core.errors import ConfigError, RetrieverError, boundary
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.apart import Row, answered_apart
from agentgrpo.retrieval.base import Backend


class Batched:
    """Answers queries that arrive in the same event-loop tick with one `search_batch` call in a separate thread; the
    next batch gathers meanwhile. Equal queries are sent once, and the last `cache_size` rows are cached, because a row
    depends only on the query and top_k. Failed rows are not cached. A query that the backend rejects fails alone."""

    def __init__(self, backend: Backend, *, max_batch: int = 256, cache_size: int = 4096) -> None:
        if cache_size < 0:
            raise ConfigError(f"cache_size={cache_size}; 0 (no cache) or more is allowed")
        self._backend = backend
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[str, int], list[Passage]] = OrderedDict()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
        self._batcher: Batcher[int, str, list[Passage]] = Batcher(self._answer, max_batch=max_batch, limiter=Limiter(1))

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        key = (query, top_k)
        if key in self._cache:
            self._cache.move_to_end(key)
            row = self._cache[key]
        else:
            row = await self._batcher.ask(top_k, query)
            self._remember(key, row)
        return list(row)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, top_k: int, queries: list[str], arrived: float) -> Sequence[Row]:
        loop = asyncio.get_running_loop()
        return await answered_apart(lambda part: loop.run_in_executor(self._thread, self._search, part, top_k), queries)

    def _search(self, queries: list[str], top_k: int) -> Sequence[Row]:
        with boundary(RetrieverError, "retriever"):
            return self._backend.search_batch(queries, top_k)

    def _remember(self, key: tuple[str, int], row: list[Passage]) -> None:
        if self._cache_size:
            self._cache[key] = row
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
