"""A model behind an endpoint that speaks OpenAI's chat completions: OpenAI itself, vLLM, SGLang, llama.cpp, ..."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.errors import JudgeError
from agentgrpo.judges.llm.completer import Reply
from agentgrpo.network.client import JsonClient, shown
from agentgrpo.network.rate import RateLimiter
from agentgrpo.network.secret import Secret
from agentgrpo.types import Message

CHARS_PER_TOKEN = 3
"""For what a call is expected to use; what it has used is known afterwards."""


class HttpCompleter:
    """POST base_url/chat/completions.

    timeout_s spans a call with all its attempts (see network.client), not the wait for the rate limit. The key is read
    from the environment variable api_key_env whenever it is sent; nothing else ever holds it.
    """

    is_remote = True

    def __init__(
        self,
        *,
        base_url: str = "http://127.0.0.1:8000/v1",
        model: str | None = None,
        api_key_env: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        extra: Mapping[str, Any] | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        max_response_bytes: int = 2**20,
        trust_env: bool = True,
    ) -> None:
        """model: null = whatever the server serves. max_tokens: of a reply. extra: fields of the request beside or
        instead of ours; null leaves a field out. Raises ConfigError, also where the environment has no such key."""
        body = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        self._body = {field: value for field, value in body.items() if value is not None}
        named = {} if model is not None else {"base_url": shown(base_url)}
        self.identity = json.dumps(named | self._body, sort_keys=True)
        self.max_tokens = most_tokens(self._body)
        self._rate = RateLimiter(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
        self._client = JsonClient(
            url=base_url.rstrip("/") + "/chat/completions",
            error=JudgeError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=(Secret(api_key_env),) if api_key_env else (),
        )

    async def complete(self, messages: Sequence[Message]) -> Reply:
        expected = sum(len(m.content) for m in messages) // CHARS_PER_TOKEN + (self.max_tokens or 0)
        grant = await self._rate.take(expected)
        payload = {**self._body, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        reply = await self._client.post(payload, _reply, admit=lambda: self._rate.take(expected))
        if used := reply.prompt_tokens + reply.completion_tokens:
            self._rate.settle(grant, used)
        return reply

    async def close(self) -> None:
        """Ends the running loop's client; the next call would open another."""
        await self._client.close()


def most_tokens(body: Mapping[str, Any]) -> int | None:
    """That the replies to a request may come to, in either spelling of its limit; None = it has no limit."""
    limits = [n for key in ("max_tokens", "max_completion_tokens") if isinstance(n := body.get(key), int)]
    choices = body.get("n", 1)
    return max(limits) * (max(1, choices) if isinstance(choices, int) else 1) if limits else None


def _reply(body: Any) -> Reply:
    try:
        text = body["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise JudgeError(f"no choices[0].message.content in {json.dumps(body)[:200]}", kind="garbage")
    usage = body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt_tokens, completion_tokens = (
        n if isinstance(n := counts.get(name), int) and n >= 0 else 0 for name in ("prompt_tokens", "completion_tokens")
    )
    return Reply(text=text, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
