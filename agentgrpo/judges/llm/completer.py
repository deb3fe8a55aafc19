"""The interface of a judge to a language model: messages in, text out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Message
from agentgrpo.services.client import JsonClient, shown
from agentgrpo.services.meter import Meter
from agentgrpo.services.rate import RateLimiter
from agentgrpo.services.secret import Secret
from agentgrpo.services.service import Form, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's reply and its token counts, which are 0 if the backend does not report them."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    paid: bool = True
    """False if the reply was replayed (services.cassette)."""


class Completer(Protocol):
    identity: str
    """The settings that decide the replies (model, sampling): part of the cache key of verdicts."""

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        """Return the model's reply. `schema` is the JSON schema of the reply, for backends that can enforce it. Must
        allow concurrent calls. Raises JudgeError."""
        ...

    async def close(self) -> None: ...


# --- A model behind an endpoint that speaks OpenAI's chat completions: OpenAI itself, vLLM, SGLang, llama.cpp, ...

CHARS_PER_TOKEN = 3
"""Estimates the tokens of a call before it is made; the backend reports the tokens used."""


class HttpCompleter:
    """POST base_url/chat/completions.

    timeout_s limits a call with all its attempts (see services.client), but not the wait for the rate limit. The key is
    read from the environment variable api_key_env for each request and is stored nowhere else.
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
        response_format: Literal["none", "json_object", "json_schema"] = "none",
        extra: Mapping[str, Any] | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        max_response_bytes: int = 2**20,
        trust_env: bool = True,
    ) -> None:
        """model: null = the model that the server serves. max_tokens: maximum tokens of a reply. response_format: how
        the endpoint enforces a reply's schema. extra: fields of the request that add to ours or replace them; null
        leaves a field out. Raises ConfigError, also if the environment has no such key."""
        body = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        self._body = {field: value for field, value in body.items() if value is not None}
        named = {} if model is not None else {"base_url": shown(base_url)}
        held = {} if response_format == "none" else {"response_format": response_format}
        self.identity = json.dumps(held | named | self._body, sort_keys=True)
        self.response_format = response_format
        self.max_tokens = most_tokens(self._body)
        self._client = JsonClient(
            url=base_url.rstrip("/") + "/chat/completions",
            error=JudgeError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=(Secret(api_key_env),) if api_key_env else (),
            rate=RateLimiter(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute),
            setting="completer.timeout_s",
        )

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        expected = sum(len(m.content) for m in messages) // CHARS_PER_TOKEN + (self.max_tokens or 0)
        payload = {**self._body, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        if schema is not None and self.response_format != "none":
            payload.setdefault("response_format", _format(self.response_format, schema))
        return await self._client.post(payload, _reply, tokens=expected, used=_tokens_of)

    async def close(self) -> None:
        """Close the running loop's client; the next call would open another."""
        await self._client.close()


def most_tokens(body: Mapping[str, Any]) -> int | None:
    """The maximum tokens of all replies to a request, in either spelling of its limit; None = no limit."""
    limits = [n for key in ("max_tokens", "max_completion_tokens") if isinstance(n := body.get(key), int)]
    choices = body.get("n", 1)
    return max(limits) * (max(1, choices) if isinstance(choices, int) else 1) if limits else None


def _format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field response_format of a request."""
    if name == "json_object":
        return {"type": name}
    return {"type": name, "json_schema": {"name": "reply", "strict": True, "schema": schema}}


def _reply(body: Any) -> Reply:
    try:
        choice = body["choices"][0]
        text = _text(choice["message"]["content"])
    except (KeyError, IndexError, TypeError):
        choice, text = None, None
    if text is None:
        cut = isinstance(choice, dict) and choice.get("finish_reason") == "length"
        why = "; it was cut short, so a larger completer.max_tokens may help" if cut else ""
        raise JudgeError(f"no choices[0].message.content in {json.dumps(body)[:200]}{why}", kind="garbage")
    usage = body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt_tokens, completion_tokens = (
        n if isinstance(n := counts.get(name), int) and n >= 0 else 0 for name in ("prompt_tokens", "completion_tokens")
    )
    return Reply(text=text, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)


def _text(content: Any) -> str | None:
    """The text of `content`, which is a text or a list of parts; only text parts count, not reasoning."""
    if isinstance(content, list):
        parts = [p["text"] for p in content if isinstance(p, dict) and p.get("type") == "text" and "text" in p]
        return "".join(parts) if parts and all(isinstance(p, str) for p in parts) else None
    return content if isinstance(content, str) else None


def _tokens_of(reply: Reply) -> int:
    return reply.prompt_tokens + reply.completion_tokens


# --- A model that judges or reads, with requests through services.service.
#
# The token cost of a call is known only afterwards. Until then its maximum is reserved from the budget.

TOKENS_PER_MESSAGE = 16
"""Tokens of a message beside its text, for its role; each token of the text is at least one byte."""
MAX_TOKENS = 1024
"""Maximum tokens of a reply, for a completer without an attribute max_tokens."""
UNBILLED = frozenset({"transport", "http_4xx", "http_429"})
"""Failures of calls that no model has answered; a call that was too slow (timeout) may have been answered."""


class CompleterService:
    """kind: judge, reader or validity; prices and limits depend on it. A replayed reply is not `paid`."""

    def __init__(self, part: Completer, *, kind: str, meter: Meter) -> None:
        self.identity = part.identity
        self.is_remote = getattr(part, "is_remote", False) and not meter.replays_only
        self._part, self._kind, self._meter = part, kind, meter
        self._max_tokens: int | None = getattr(part, "max_tokens", MAX_TOKENS)
        self._prices = (0.0, 0.0)
        self._form: Form[Reply] = Form(
            write=_row, read=lambda row: Reply(**row), error=JudgeError, unbilled=UNBILLED, cost=self._cost
        )

    def at_prices(self, prompt_price: float, completion_price: float) -> None:
        """Set the prices per 1,000 tokens, in addition to the price of a call. Raises ConfigError if the budget limits
        money but no limit on tokens bounds a reply's price."""
        budget = self._meter.budget
        if completion_price and self._max_tokens is None and {budget.per_step.money, budget.per_run.money} != {None}:
            raise ConfigError(
                f"budget limits money, and a reply of the {self._kind} model may cost any amount: its request has no "
                "limit on tokens; give completer.max_tokens, or completer.extra.max_completion_tokens"
            )
        self._prices = (prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        """Raises JudgeError; BudgetSpent and CassetteMiss end the run."""
        texts = [[m.role, m.content] for m in messages]
        # The identity counts, since it holds fields of every request; so does the reply's schema, read like a prompt.
        size = sum(len(m.content.encode("utf-8", "replace")) + TOKENS_PER_MESSAGE for m in messages)
        if getattr(self._part, "response_format", "none") != "none":
            size += len(json.dumps(schema))
        most = Reply(
            text="",
            prompt_tokens=size + len(self.identity.encode("utf-8", "replace")),
            completion_tokens=self._max_tokens or 0,
        )

        async def live() -> Reply:
            return await self._part.complete(messages, schema)

        body = {"service": self.identity, "messages": texts}
        request = Request(kind=self._kind, body=body, live=live, form=self._form, estimate=self._cost(most))
        answer = await self._meter.ask(request)
        return answer.value if answer.paid else replace(answer.value, paid=False)

    async def ask_directly(self, messages: Sequence[Message]) -> None:
        """Ask past cassette and budget, to see whether the model is there. Does nothing if all calls are replayed."""
        if not self._meter.replays_only:
            await self._part.complete(messages)

    async def close(self) -> None:
        await self._part.close()

    def _cost(self, reply: Reply) -> float:
        prompt, completion = self._prices
        return (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000


def _row(reply: Reply) -> dict[str, Any]:
    return {key: value for key, value in asdict(reply).items() if key != "paid"}


# --- The cost of a model's replies.

COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost")

PROBE = (Message(role="user", content="Is 1 + 1 equal to 2? Reply yes or no."),)


class Billed:
    """A completer that counts its paid replies: `counts` has the keys COUNTS. Prices are per 1,000 tokens."""

    def __init__(self, completer: Completer, *, prompt_price: float, completion_price: float, setting: str) -> None:
        """setting: the configuration key of the part with the prices. Raises ConfigError."""
        for name, price in {"prompt_price": prompt_price, "completion_price": completion_price}.items():
            if not (math.isfinite(price) and price >= 0):
                raise ConfigError(f"{setting}.{name}={price}; 0 or more is allowed")
        self.identity = completer.identity
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self._completer = completer
        self._prices = (prompt_price, completion_price)
        self._metered = completer if isinstance(completer, CompleterService) else None
        if self._metered is not None:
            self._metered.at_prices(prompt_price, completion_price)

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        reply = await self._completer.complete(messages, schema)
        if reply.paid:
            prompt, completion = self._prices
            self.counts["calls"] += 1
            self.counts["prompt_tokens"] += reply.prompt_tokens
            self.counts["completion_tokens"] += reply.completion_tokens
            self.counts["cost"] += (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000
        return reply

    async def probe(self) -> None:
        """Ask a model behind an endpoint one small, uncounted question, to see if it replies. Raises JudgeError."""
        if getattr(self._completer, "is_remote", False):
            await (self._completer.complete(PROBE) if self._metered is None else self._metered.ask_directly(PROBE))

    async def close(self) -> None:
        await self._completer.close()
