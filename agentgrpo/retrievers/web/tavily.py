"""Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.network.secret import Secret
from agentgrpo.retrievers.web.service import WebSearch, one_of

_DEPTHS = ("basic", "advanced", "fast", "ultra-fast")
_TOPICS = ("general", "news", "finance")


class Tavily(WebSearch):
    """POST base_url/search. search_depth: basic, fast and ultra-fast cost 1 credit, advanced 2. topic: general, news or
    finance. country: a name such as germany, whose pages come first; null = none, and only with topic=general."""

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
