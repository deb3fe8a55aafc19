"""A page fetcher that fetches the pages itself; agentgrpo.services restricts the addresses."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from agentgrpo.core.concurrency import Batcher, Limiter
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.services.addresses import Forbidden, Reachable
from agentgrpo.services.pages import PageClient, PageError, read

logger = logging.getLogger(__name__)


class Pages:
    """`fetcher: {name: pages}`: the text of web pages, at most max_chars characters of each.

    URLs come from search results and from the policy, and may reach only public addresses, on `ports`. Hosts named in
    allow_hosts may have private addresses, and networks in allow_networks may be reached even if private. At most
    max_concurrent pages are fetched at a time, first come first served; timeout_s counts from the start of a page's
    fetch. Equal URLs in progress are fetched once.

    A failed page is a RetrieverError in its place: of kind `forbidden`, or of a kind of PageError. A machine without a
    network fails the whole request (dead_network). `counts`: pages, and failures by kind.
    """

    def __init__(
        self,
        *,
        allow_hosts: tuple[str, ...] = (),
        allow_networks: tuple[str, ...] = (),
        ports: tuple[int, ...] = (80, 443),
        timeout_s: float = 20.0,
        max_bytes: int = 2 * 2**20,
        max_chars: int = 20_000,
        max_redirects: int = 5,
        max_concurrent: int = 8,
        user_agent: str = "agentgrpo",
        pages: PageClient | None = None,
    ) -> None:
        if max_chars < 1:
            raise ConfigError(f"max_chars={max_chars}; at least 1 is allowed")
        self.identity = f"pages of {max_chars} characters"
        self.counts: Counter[str] = Counter()
        self._max_chars = max_chars
        self._pages = pages or PageClient(
            reachable=Reachable(hosts=allow_hosts, networks=allow_networks),
            ports=ports,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            max_redirects=max_redirects,
            max_concurrent=max_concurrent,
            user_agent=user_agent,
        )
        self._batcher: Batcher[None, str, Passage] = Batcher(self._answer, max_batch=1, limiter=Limiter(max_concurrent))

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        asked = (self._batcher.ask(None, url) for url in urls)
        pages: list[Passage | BaseException] = await asyncio.gather(*asked, return_exceptions=True)
        for page in pages:
            if isinstance(page, RetrieverError) and page.kind == "dead_network":
                raise page
            if not isinstance(page, Passage | RetrieverError):
                raise page
        return pages  # type: ignore[return-value]  # narrowed by the loop

    async def close(self) -> None:
        await self._pages.close()

    async def _answer(self, group: None, keys: list[str], arrived: float) -> list[Passage | RetrieverError]:
        self.counts["pages"] += 1
        [url] = keys
        try:
            page = await self._pages.get(url)
            text = await read(page)
        except (Forbidden, PageError) as e:
            kind = e.kind if isinstance(e, PageError) else "forbidden"
            self.counts[kind] += 1
            logger.warning("a page could not be fetched (%s): %s", kind, e)
            return [RetrieverError(f"{url[:200]} could not be fetched: {e}", kind=kind)]
        return [Passage(id=url, url=url, text=text[: self._max_chars])]
