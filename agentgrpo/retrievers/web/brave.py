"""Brave Search: https://api-dashboard.search.brave.com/app/documentation/web-search/query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.network.secret import Secret
from agentgrpo.retrievers.web.service import WebSearch, one_of

_SAFE_SEARCH = ("off", "moderate", "strict")


class Brave(WebSearch):
    """GET base_url/web/search. country: two letters such as US; language (search_lang): such as en; safe_search: off,
    moderate or strict; null = US, en and moderate, the service's own."""

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
                "safesearch": one_of("safe_search", safe_search, _SAFE_SEARCH),
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
