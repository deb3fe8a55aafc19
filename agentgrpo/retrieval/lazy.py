"""A retriever whose index is opened by the first search, or by the probe at the start of a session."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property

from agentgrpo.core.errors import AgentGrpoError, ConfigError, RetrieverError, line_of
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Backend
from agentgrpo.retrieval.batching import Batched
from agentgrpo.retrieval.embedder import Embedder, identity_of
from agentgrpo.retrieval.index.manifest import Shape

Opened = tuple[Backend, Callable[[], None]]
"""(the backend, a function that closes it)"""


class LazyRetriever(Batched):
    """`open` is called once, in the search thread. It raises ConfigError for errors that the user must correct."""

    def __init__(self, open: Callable[[], Opened], *, identity: Callable[[], str], cache_size: int = 4096) -> None:
        """identity: describes the index and the kind of search, but not the location; called only when needed."""
        self._identity = identity
        self._lazy = _LazyBackend(open)
        super().__init__(self._lazy, cache_size=cache_size)

    @cached_property
    def identity(self) -> str:
        return self._identity()

    async def probe(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._lazy.open)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._lazy.close)


class _LazyBackend:
    def __init__(self, open: Callable[[], Opened]) -> None:
        self._open, self._lock = open, threading.Lock()
        self._opened: Opened | None = None

    def open(self) -> Backend:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened[0]

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        return self.open().search_batch(queries, top_k)

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened[1]()
                self._opened = None


def identity_with(kind: str, embedder: Embedder, shape: Shape, **what: object) -> str:
    """The identity of the retriever `kind`, with the fields `what`."""
    return json.dumps({"retriever": kind, "embedder": identity_of(embedder), **asdict(shape), **what}, sort_keys=True)


def extra_missing(error: ImportError, *, what: str, extra: str) -> ConfigError:
    """The error for a missing package that only the chosen part needs."""
    return ConfigError(f"{what} needs a package that is not installed ({error.name}): pip install 'agentgrpo[{extra}]'")


def one_line(error: BaseException) -> str:
    """A library's error message without line breaks."""
    if isinstance(error, AgentGrpoError):
        return str(error)
    return line_of(error)
