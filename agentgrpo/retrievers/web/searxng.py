"""SearXNG: a metasearch engine that anybody can run, https://docs.searxng.org/dev/search_api.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.errors import RetrieverError
from agentgrpo.retrievers.web.service import WebSearch, one_of

_SAFE_SEARCH = ("off", "moderate", "strict")
_TIME_RANGES = ("day", "month", "year")


class SearxNG(WebSearch):
    """GET base_url/search. The instance must answer in JSON: `json` under search.formats in its settings.yml.

    language: such as de or de-CH, null = the instance's own. categories, engines: by their names there, empty = its
    own. safe_search: off, moderate or strict; time_range: day, month or year; null = the instance's own, any time.

    A search without a result in which engines did not answer is a failure (kind `unresponsive`), not an empty page."""

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
