"""Serper: Google's results, https://serper.dev/playground."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.network.secret import Secret
from agentgrpo.retrievers.web.service import WebSearch


class Serper(WebSearch):
    """POST base_url/search. country (gl): such as us; language (hl): such as en; null = as Google chooses.

    A search of more than PAGE results costs more, so that no more are asked for than are wanted."""

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
