"""What search services have in common: one query a request, results that are links with a snippet."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from agentgrpo.concurrency import Batcher, Limiter
from agentgrpo.errors import ConfigError, RetrieverError, did_you_mean
from agentgrpo.network.client import JsonClient
from agentgrpo.network.rate import RateLimiter
from agentgrpo.network.readable import text_of
from agentgrpo.network.secret import Secret
from agentgrpo.retrievers.corpus import well_formed
from agentgrpo.retrievers.wire import finite, garbage
from agentgrpo.types import Passage

KEEP_ALIVE_S = 30.0
"""Shorter than servers keep idle connections; a new one costs two round trips and a TLS handshake."""


class WebSearch(ABC):
    """One service. timeout_s spans a query with all its attempts, not its wait for a turn: at most max_concurrent
    queries are on their way, first come first served, and requests_per_second of them start, evenly spaced. Equal
    queries on their way are asked once. retries, backoff_s and the kinds of failure are those of JsonClient.

    A result is a Passage: id and url are its URL, the text is the snippet. `counts`: those of JsonClient. `identity`:
    of the service and its options, which are fields of every request."""

    max_chars = 2048
    """Of a query: what is longer the service would refuse, and it is the policy's to keep it short."""
    max_words: int | None = None
    posts = False
    url_key = "url"
    text_key = "content"
    is_marked = False
    """Titles and snippets are HTML: references such as &amp;, and tags around the words that were found."""
    advice = "check the key and its quota, and retriever.web.base_url"
    """What to do where the service cannot be searched."""

    def __init__(
        self,
        *,
        url: str,
        options: Mapping[str, object],
        secrets: Sequence[Secret] = (),
        requests_per_second: float | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        self._options = {name: value for name, value in options.items() if value is not None}
        self.identity = f"{type(self).__name__} {json.dumps(self._options, sort_keys=True)}"
        self._rate = RateLimiter(requests_per_second=requests_per_second)
        self._client = JsonClient(
            url=url,
            error=RetrieverError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=secrets,
            keep_alive_s=KEEP_ALIVE_S,
            busy=self._rate.hold,
        )
        self.counts = self._client.counts
        self._batcher: Batcher[int, str, list[Passage]] = Batcher(
            self._answer, max_batch=1, limiter=Limiter(max_concurrent)
        )

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Best first; fewer than top_k where the service has no more, or gives no more at once."""
        query = " ".join(well_formed(query).split()[: self.max_words])[: self.max_chars].strip()
        return list(await self._batcher.ask(top_k, query)) if query else []

    async def probe(self) -> None:
        """Searches once, for a word. Raises ConfigError where the service refuses us, RetrieverError where it fails."""
        try:
            await self.search("encyclopedia", top_k=1)
        except RetrieverError as e:
            if e.kind == "http_4xx":
                raise ConfigError(f"{e}; {self.advice}") from e
            raise RetrieverError(f"{e}; {self.advice}", kind=e.kind) from e

    async def close(self) -> None:
        """Ends the running loop's connections; the next query would open others."""
        await self._client.close()

    @abstractmethod
    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        """Of the request, beside the options."""

    @abstractmethod
    def _results(self, reply: Mapping[str, Any]) -> object:
        """What should be the list of results. Raises RetrieverError where the reply says that the search failed."""

    async def _answer(self, group: int, keys: list[str], arrived: float) -> list[list[Passage]]:
        await self._rate.take()
        fields = {**self._fields(keys[0], group), **self._options}
        read, now = partial(self._read, top_k=group), asyncio.get_running_loop().time()
        if self.posts:
            return [await self._client.post(fields, read, arrived=now, admit=self._rate.take)]
        params = {name: str(value) for name, value in fields.items()}
        return [await self._client.get(params, read, arrived=now, admit=self._rate.take)]

    def _read(self, reply: object, *, top_k: int) -> list[Passage]:
        results = self._results(reply) if isinstance(reply, dict) else None
        if not isinstance(results, list):
            raise garbage("the reply has no list of results")
        try:
            found = (self._passage(item) for item in results)
            return list(islice((passage for passage in found if passage is not None), top_k))
        except ValueError as e:
            raise garbage(f"a result is malformed: {e}") from e

    def _passage(self, item: object) -> Passage | None:
        """None for what cannot be cited or says nothing. Raises ValueError with the reason."""
        if not isinstance(item, dict):
            raise ValueError(f"a JSON {type(item).__name__}, not an object")
        url, title, text = (_text(item, key) for key in (self.url_key, "title", self.text_key))
        if self.is_marked:
            title, text = text_of(title), text_of(text)
        if not url or not (title or text):
            return None
        score = item.get("score")
        return Passage(id=url, url=url, title=title, text=text, score=None if score is None else finite(score))


def one_of(name: str, value: str | None, allowed: Sequence[str]) -> str | None:
    """`value`, which may be null. Raises ConfigError for what the service would refuse."""
    if value is not None and value not in allowed:
        raise ConfigError(f"{name}={value!r}; allowed are {', '.join(allowed)}.{did_you_mean(value, allowed)}")
    return value


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is a JSON {type(value).__name__}, not a string")
    return well_formed(value or "").strip()
