"""What a retriever is: queries to ranked passages.

A backend answers a list of queries in one synchronous call; `batching.Batched` turns it into the async Retriever that
agents use, so that queries which arrive together are answered in one batch, off the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage


class Backend(Protocol):
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        """One row per query, best first, at most top_k passages. A row that failed is an error of that row alone.
        A row must not depend on the other queries of the batch."""
        ...


class Retriever(Protocol):
    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Best first, at most top_k. An empty list means that nothing was found; raises RetrieverError on failure."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetrievers:
    """The retrievers of some tasks alone."""

    task_ids: frozenset[str]
    retrievers: Mapping[str, Retriever]


@runtime_checkable
class Probed(Protocol):
    """A retriever whose index or server can be missing. Building it touches neither."""

    async def probe(self) -> None:
        """Raises ConfigError or RetrieverError, with what to do, where a search could not succeed."""
        ...


Progress = Callable[[str, int, int], None]
"""(what is done, passages done, of how many)"""


class Indexer(Protocol):
    """Builds what a retriever searches, from a corpus in its order."""

    @property
    def count(self) -> int:
        """Passages that are durably in: an interrupted build goes on with the next one."""
        ...

    def resume(self, corpus: Iterator[Passage]) -> None:
        """Takes from `corpus` the `count` passages that are in. Raises ConfigError where they are others."""
        ...

    def add(self, passages: Sequence[Passage]) -> None: ...

    def finish(self, progress: Progress) -> None:
        """The index is whole and may be searched; an interrupted `finish` goes on where it was."""
        ...


class Reranker(Protocol):
    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        """The best top_k of `passages`, best first, with the reranker's scores."""
        ...


class PageFetcher(Protocol):
    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        """One page per URL, in order; `id` and `url` are the URL."""
        ...
