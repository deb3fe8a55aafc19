"""Interfaces of retrieval: queries to ranked passages.

A backend answers a list of queries in one synchronous call; `batching.Batched` turns it into the async Retriever that
agents use. Queries that arrive together are then answered in one batch, off the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage


class Backend(Protocol):
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        """One row per query, at most top_k passages, best first. A failed row is an error in its place. A row must not
        depend on the other queries of the batch."""
        ...


class Retriever(Protocol):
    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        """At most top_k passages, best first; an empty list if nothing was found. Raises RetrieverError on failure."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetrievers:
    """Retrievers for certain tasks only."""

    task_ids: frozenset[str]
    retrievers: Mapping[str, Retriever]


@runtime_checkable
class Probed(Protocol):
    """A retriever whose index or server can be missing. Building it touches neither."""

    async def probe(self) -> None:
        """Raises ConfigError or RetrieverError, with advice, if a search could not succeed."""
        ...


Progress = Callable[[str, int, int], None]
"""(stage, passages done, all passages)"""


class Indexer(Protocol):
    """Builds an index for a retriever, from a corpus in its order."""

    @property
    def count(self) -> int:
        """Number of durably stored passages; an interrupted build continues with the next passage."""
        ...

    def resume(self, corpus: Iterator[Passage]) -> None:
        """Skip the first `count` passages of `corpus`, which are stored already. Raises ConfigError if they differ."""
        ...

    def add(self, passages: Sequence[Passage]) -> None: ...

    def finish(self, progress: Progress) -> None:
        """Complete the index for searching; an interrupted `finish` continues where it stopped."""
        ...


class Reranker(Protocol):
    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        """The best top_k of `passages`, best first, with the reranker's scores."""
        ...


class PageFetcher(Protocol):
    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        """One page per URL, in order; `id` and `url` are the URL."""
        ...
