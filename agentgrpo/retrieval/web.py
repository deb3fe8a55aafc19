"""The common base of search services: one query per request, and results that are links with a snippet."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from agentgrpo.core.concurrency import Batcher, Limiter
from agentgrpo.core.errors import ConfigError, RetrieverError, did_you_mean
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import well_formed
from agentgrpo.retrieval.wire import finite, garbage
from agentgrpo.services.client import JsonClient
from agentgrpo.services.pages import text_of
from agentgrpo.services.rate import RateLimiter
from agentgrpo.services.secret import Secret

KEEP_ALIVE_S = 30.0
"""Shorter than servers keep idle connections; opening a new one costs two round trips and a TLS handshake."""


class WebSearch(ABC):
    """One search service. timeout_s spans a query with all its attempts, but not its waiting time: at most
    max_concurrent queries run at a time, first come first served, and requests_per_second of them start, evenly spaced.
    Equal queries in progress are sent once. retries, backoff_s and the kinds of failure are those of JsonClient.

    A result is a Passage: id and url are its URL, the text is its snippet. `counts`: those of JsonClient. `identity`:
    the service and its options, which are fields of every request.
    """

    max_chars = 2048
    """Maximum characters of a query; longer queries are cut, because the service would refuse them."""
    max_words: int | None = None
    posts = False
    url_key = "url"
    text_key = "content"
    is_marked = False
    """True if titles and snippets are HTML, with references such as &amp; and tags around the matching words."""
    advice = "check the key and its quota, and retriever.web.base_url"
    """Advice for users if the service cannot be searched."""

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
            rate=RateLimiter(requests_per_second=requests_per_second),
            setting="retriever.web.timeout_s",
        )
        self.counts = self._client.counts
        self._batcher: Batcher[int, str, list[Passage]] = Batcher(
            self._answer, max_batch=1, limiter=Limiter(max_concurrent)
        )

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Results best first; fewer than top_k if the service has no more, or returns no more at once."""
        query = " ".join(well_formed(query).split()[: self.max_words])[: self.max_chars].strip()
        return list(await self._batcher.ask(top_k, query)) if query else []

    async def probe(self) -> None:
        """Search for a word once. Raises ConfigError if the service refuses the request, RetrieverError if it fails."""
        try:
            await self.search("encyclopedia", top_k=1)
        except RetrieverError as e:
            if e.kind == "http_4xx":
                raise ConfigError(f"{e}; {self.advice}") from e
            raise RetrieverError(f"{e}; {self.advice}", kind=e.kind) from e

    async def close(self) -> None:
        """Close the connections of the running event loop; the next query would open others."""
        await self._client.close()

    @abstractmethod
    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        """The request's fields besides the options."""

    @abstractmethod
    def _results(self, reply: Mapping[str, Any]) -> object:
        """The reply's list of results, not yet validated. Raises RetrieverError if the reply says that the search
        failed."""

    async def _answer(self, group: int, keys: list[str], arrived: float) -> list[list[Passage]]:
        fields = {**self._fields(keys[0], group), **self._options}
        read = partial(self._read, top_k=group)
        if self.posts:
            return [await self._client.post(fields, read)]
        return [await self._client.get({name: str(value) for name, value in fields.items()}, read)]

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
        """None for a result without a URL, or without title and text. Raises ValueError with the reason."""
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
    """`value`, which may be null. Raises ConfigError for a value that the service would refuse."""
    if value is not None and value not in allowed:
        raise ConfigError(f"{name}={value!r}; allowed are {', '.join(allowed)}.{did_you_mean(value, allowed)}")
    return value


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is a JSON {type(value).__name__}, not a string")
    return well_formed(value or "").strip()


# --- Brave Search: https://api-dashboard.search.brave.com/app/documentation/web-search/query.

_BRAVE_SAFE_SEARCH = ("off", "moderate", "strict")


class Brave(WebSearch):
    """GET base_url/web/search. country: two letters such as US; language (search_lang): such as en; safe_search: off,
    moderate or strict. null = the service's defaults: US, en and moderate."""

    MAX_RESULTS = 20
    max_chars = 400
    max_words = 50
    text_key = "description"
    is_marked = True

    def __init__(
        self,
        *,
        base_url: str = "https://api.search.brave.com/res/v1",
        api_key_env: str = "BRAVE_API_KEY",
        country: str | None = None,
        language: str | None = None,
        safe_search: str | None = None,
        requests_per_second: float | None = 1.0,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        super().__init__(
            url=base_url.rstrip("/") + "/web/search",
            options={
                "country": None if country is None else country.upper(),
                "search_lang": language,
                "safesearch": one_of("safe_search", safe_search, _BRAVE_SAFE_SEARCH),
                "result_filter": "web",
                "text_decorations": "false",
            },
            secrets=[Secret(api_key_env, "X-Subscription-Token", "")],
            requests_per_second=requests_per_second,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )

    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        return {"q": query, "count": min(top_k, self.MAX_RESULTS)}

    def _results(self, reply: Mapping[str, Any]) -> object:
        web = reply.get("web", {"results": []} if reply.get("type") == "search" else None)
        return web.get("results") if isinstance(web, Mapping) else None


# --- SearXNG: a metasearch engine for self-hosting, https://docs.searxng.org/dev/search_api.html.

_SAFE_SEARCH = ("off", "moderate", "strict")
_TIME_RANGES = ("day", "month", "year")


class SearxNG(WebSearch):
    """GET base_url/search. The instance must answer in JSON: `json` under search.formats in its settings.yml.

    language: such as de or de-CH. categories, engines: by their names on the instance. safe_search: off, moderate or
    strict. time_range: day, month or year, null = any time. For the others null or empty = the instance's default.

    A search without results in which some engines did not answer is a failure (kind `unresponsive`), not an empty
    result.
    """

    advice = "check retriever.web.base_url, and that the instance has json under search.formats in its settings.yml"

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8080",
        language: str | None = None,
        categories: tuple[str, ...] = (),
        engines: tuple[str, ...] = (),
        safe_search: str | None = None,
        time_range: str | None = None,
        requests_per_second: float | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        level = one_of("safe_search", safe_search, _SAFE_SEARCH)
        super().__init__(
            url=base_url.rstrip("/") + "/search",
            options={
                "format": "json",
                "language": language,
                "categories": ",".join(categories) or None,
                "engines": ",".join(engines) or None,
                "safesearch": None if level is None else _SAFE_SEARCH.index(level),
                "time_range": one_of("time_range", time_range, _TIME_RANGES),
            },
            requests_per_second=requests_per_second,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )

    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        return {"q": query}

    def _results(self, reply: Mapping[str, Any]) -> object:
        results, silent = reply.get("results"), reply.get("unresponsive_engines")
        if results == [] and silent:
            raise RetrieverError(
                f"no result, and these engines did not answer: {str(silent)[:200]}", kind="unresponsive"
            )
        return results


# --- SerpApi: Google's results, https://serpapi.com/search-api.

_SERPAPI_SAFE_SEARCH = {"off": "off", "strict": "active"}
_NOTHING = "hasn't returned any results"
"""Part of the `error` in a successful reply that found nothing."""


class SerpApi(WebSearch):
    """GET base_url/search with engine=google. country (gl): such as us; language (hl): such as en; safe_search: off or
    strict; null = Google's default.

    A search that the engine did not answer is a failure of kind `unresponsive`.
    """

    url_key = "link"
    text_key = "snippet"

    def __init__(
        self,
        *,
        base_url: str = "https://serpapi.com",
        api_key_env: str = "SERPAPI_API_KEY",
        country: str | None = None,
        language: str | None = None,
        safe_search: str | None = None,
        requests_per_second: float | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        level = one_of("safe_search", safe_search, tuple(_SERPAPI_SAFE_SEARCH))
        safe = None if level is None else _SERPAPI_SAFE_SEARCH[level]
        super().__init__(
            url=base_url.rstrip("/") + "/search",
            options={"engine": "google", "gl": country, "hl": language, "safe": safe},
            secrets=[Secret(api_key_env, parameter="api_key")],
            requests_per_second=requests_per_second,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )

    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        return {"q": query}

    def _results(self, reply: Mapping[str, Any]) -> object:
        metadata, error = reply.get("search_metadata"), reply.get("error")
        went_well = isinstance(metadata, Mapping) and metadata.get("status") == "Success"
        if error and not (went_well and _NOTHING in str(error)):
            raise RetrieverError(f"the search failed: {str(error)[:200]}", kind="unresponsive")
        return reply.get("organic_results", [] if went_well else None)


# --- Serper: Google's results, https://serper.dev/playground.


class Serper(WebSearch):
    """POST base_url/search. country (gl): such as us; language (hl): such as en; null = Google's default.

    A search for more than PAGE results costs more, so only the wanted number is requested.
    """

    PAGE = 10
    posts = True
    url_key = "link"
    text_key = "snippet"

    def __init__(
        self,
        *,
        base_url: str = "https://google.serper.dev",
        api_key_env: str = "SERPER_API_KEY",
        country: str | None = None,
        language: str | None = None,
        requests_per_second: float | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        super().__init__(
            url=base_url.rstrip("/") + "/search",
            options={"gl": country, "hl": language},
            secrets=[Secret(api_key_env, "X-API-KEY", "")],
            requests_per_second=requests_per_second,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )

    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        return {"q": query} | ({"num": top_k} if top_k > self.PAGE else {})

    def _results(self, reply: Mapping[str, Any]) -> object:
        return reply.get("organic", [] if "searchParameters" in reply else None)


# --- Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search.

_DEPTHS = ("basic", "advanced", "fast", "ultra-fast")
_TOPICS = ("general", "news", "finance")


class Tavily(WebSearch):
    """POST base_url/search. search_depth: basic, fast and ultra-fast cost 1 credit, advanced 2. topic: general, news or
    finance. country: a name such as germany, whose pages rank first; null = no preference. A country requires
    topic=general."""

    MAX_RESULTS = 20
    max_chars = 400
    posts = True

    def __init__(
        self,
        *,
        base_url: str = "https://api.tavily.com",
        api_key_env: str = "TAVILY_API_KEY",
        search_depth: str = "basic",
        topic: str = "general",
        country: str | None = None,
        requests_per_second: float | None = 1.6,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_concurrent: int = 8,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
    ) -> None:
        if country is not None and topic != "general":
            raise ConfigError(f"country={country!r} with topic={topic!r}; a country is allowed with topic=general")
        super().__init__(
            url=base_url.rstrip("/") + "/search",
            options={
                "search_depth": one_of("search_depth", search_depth, _DEPTHS),
                "topic": one_of("topic", topic, _TOPICS),
                "country": None if country is None else country.lower(),
            },
            secrets=[Secret(api_key_env)],
            requests_per_second=requests_per_second,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_concurrent=max_concurrent,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
        )

    def _fields(self, query: str, top_k: int) -> Mapping[str, object]:
        return {"query": query, "max_results": min(top_k, self.MAX_RESULTS)}

    def _results(self, reply: Mapping[str, Any]) -> object:
        return reply.get("results")
