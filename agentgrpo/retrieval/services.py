"""Retrievers, rerankers and page fetchers that call a service, each call as a Request to the meter.

A request contains the service's `identity`, but not its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from inspect import getattr_static
from typing import Any

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import PageFetcher, Probed, Reranker, Retriever
from agentgrpo.services.budget import OVER_BUDGET
from agentgrpo.services.meter import Meter
from agentgrpo.services.service import Form, Request

_PASSING = (408, 425, 429)
PAGE_FACTS = frozenset(
    {"forbidden", "no_text", "oversize", "page", "redirects", "http_4xx"}
    | {f"http_{status}" for status in range(400, 500) if status not in _PASSING}
)
"""Kinds of failure that belong to a page, not to the connection."""


class _Missing(RetrieverError):
    """The failure of a single page."""


def _row(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "text": passage.text, "title": passage.title, "url": passage.url, "score": passage.score}


def _passage(row: Mapping[str, Any]) -> Passage:
    return Passage(**row)


_PASSAGES: Form[list[Passage]] = Form(
    write=lambda passages: [_row(p) for p in passages],
    read=lambda rows: [_passage(row) for row in rows],
    error=RetrieverError,
)
_NOTHING: Form[None] = Form(write=lambda _: None, read=lambda _: None, error=RetrieverError)
_PAGE: Form[Passage] = Form(write=_row, read=_passage, error=_Missing, facts=PAGE_FACTS)


class RetrieverService:
    """kind: web or vdb, which determines price and limits."""

    def __init__(self, part: Retriever, *, kind: str, meter: Meter) -> None:
        self._part, self._kind, self._meter = part, kind, meter
        self._identity = Identity(part, meter)

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Raises RetrieverError (with over_budget as one kind); BudgetSpent and CassetteMiss end the run."""
        body = {"service": await self._identity.text(), "query": query, "top_k": top_k}

        async def live() -> list[Passage]:
            return await self._part.search(query, top_k=top_k)

        answer = await self._meter.ask(Request(kind=self._kind, body=body, live=live, form=_PASSAGES))
        return list(answer.value)

    async def probe(self) -> None:
        """Skipped if all answers are replayed, because then no service is needed. The probe of a web search costs
        money, so it is metered and replayed like any call. The probe of an index or of your own server is made every
        time."""
        if not isinstance(self._part, Probed) or self._meter.replays_only:
            return
        if self._kind == "web":
            body = {"service": await self._identity.text(), "probe": True}
            await self._meter.ask(Request(kind=self._kind, body=body, live=self._part.probe, form=_NOTHING))
        else:
            await self._part.probe()

    async def close(self) -> None:
        await self._part.close()


class RerankerService:
    def __init__(self, part: Reranker, *, meter: Meter) -> None:
        self._part, self._meter = part, meter
        self._identity = Identity(part, meter)

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        if not passages:
            return []
        documents = [[p.id, p.title, p.text] for p in passages]
        service = await self._identity.text()
        body = {"service": service, "query": query, "documents": documents, "top_k": top_k}

        async def live() -> list[Passage]:
            return await self._part.rerank(query, passages, top_k=top_k)

        return list((await self._meter.ask(Request(kind="rerank", body=body, live=live, form=_PASSAGES))).value)


class FetcherService:
    """Each page is a separate call; the pages of a turn are still fetched together."""

    def __init__(self, part: PageFetcher, *, meter: Meter) -> None:
        self._part, self._meter = part, meter
        self._identity = Identity(part, meter)

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        """Raises RetrieverError if the fetcher itself fails; over_budget is the error of a single page."""
        pages: list[Passage | RetrieverError] = []
        for page in await asyncio.gather(*(self._fetch(url) for url in urls), return_exceptions=True):
            if isinstance(page, Passage | _Missing) or (isinstance(page, RetrieverError) and page.kind == OVER_BUDGET):
                pages.append(page)
            else:
                raise page
        return pages

    async def _fetch(self, url: str) -> Passage:
        async def live() -> Passage:
            [page] = await self._part.fetch([url])
            if isinstance(page, RetrieverError):
                raise _Missing(str(page), kind=page.kind) from page
            return page

        body = {"service": await self._identity.text(), "url": url}
        return (await self._meter.ask(Request(kind="fetch", body=body, live=live, form=_PAGE))).value


class Identity:
    """The identity of a part. Raises ConfigError for a part without one if answers are recorded, because they could be
    mistaken for those of another part."""

    def __init__(self, part: object, meter: Meter) -> None:
        self._part, self._text = part, None if _has_identity(part) else type(part).__name__
        if self._text is not None and meter.has_cassette:
            raise ConfigError(
                f"{self._text} has no identity, under which a cassette stores answers; give it `identity`, a text of "
                "everything that determines its answers, or use cassette=live"
            )

    async def text(self) -> str:
        """Computed in a thread at first use: it may be a digest of a model's files."""
        if self._text is None:
            self._text = await asyncio.to_thread(_identity_of, self._part)
        return self._text


def _identity_of(part: Any) -> str:
    return str(part.identity)


def _has_identity(part: object) -> bool:
    return getattr_static(part, "identity", None) is not None
