"""A page fetcher that fetches nothing: it returns pages from the task set."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage


class TaskPages:
    """`fetcher: {name: task}`: the task set's corpora["pages"], by URL. An unknown URL gives a RetrieverError of kind
    `not_found` in its place. Raises ConfigError for a task set without pages."""

    def __init__(self, *, pages: Sequence[Passage]) -> None:
        if not pages:
            raise ConfigError(
                "environment.fetcher.name=task, and the task set brings no pages; allowed are pages, http and none"
            )
        self._pages = {page.url: page for page in pages}

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        missing = {url: RetrieverError(f"{url[:200]} is no page of the task set", kind="not_found") for url in urls}
        return [self._pages.get(url) or missing[url] for url in urls]
