"""SerpApi: Google's results, https://serpapi.com/search-api."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.errors import RetrieverError
from agentgrpo.network.secret import Secret
from agentgrpo.retrievers.web.service import WebSearch, one_of

_SAFE_SEARCH = {"off": "off", "strict": "active"}
_NOTHING = "hasn't returned any results"
"""What the `error` of a search says that went well and found nothing."""


class SerpApi(WebSearch):
    """GET base_url/search with engine=google. country (gl): such as us; language (hl): such as en; safe_search: off or
    strict; null = as Google chooses.

    A search that the engine did not answer is a failure of kind `unresponsive`."""

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
        level = one_of("safe_search", safe_search, tuple(_SAFE_SEARCH))
        safe = None if level is None else _SAFE_SEARCH[level]
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
