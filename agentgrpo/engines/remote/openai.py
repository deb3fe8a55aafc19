"""A model behind an endpoint with OpenAI's API, for evaluation only: text in, text out, no exact log-probs.

    completions   POST base_url/completions: the context as text, with control tokens written out
    chat          POST base_url/chat/completions: the context as messages (renderers.speech)

No `stop` is sent: most endpoints do not report whether a stop string ended the reply, or which one, and a guess would
be taken for the policy's own text. Instead the reply is cut here, after the first stop string that it completes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from agentgrpo.core.errors import ConfigError, EngineError
from agentgrpo.core.types import FinishReason, Message
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.remote.server import seed_of
from agentgrpo.engines.remote.text import end_of, is_ended, room_for
from agentgrpo.services.client import JsonClient
from agentgrpo.services.meter import Meter
from agentgrpo.services.rate import RateLimiter
from agentgrpo.services.secret import Secret
from agentgrpo.services.service import Form, Request

COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost")
UNBILLED = frozenset({"transport", "http_4xx", "http_429"})
"""Kinds of failures of calls that no model has answered."""
_SEEDS = 2**31
"""Some endpoints do not accept larger seeds."""


class Voice(Protocol):
    """Converts contexts to text for an external model, and its replies to tokens; renderers.speech implements it."""

    def transcript(self, token_ids: Sequence[int]) -> str: ...

    def messages(self, token_ids: Sequence[int]) -> Sequence[Message]: ...

    def said(self, text: str, *, after: Sequence[int]) -> tuple[int, ...]: ...


class _Reply(NamedTuple):
    text: str
    is_whole: bool
    """The reply was not truncated."""
    prompt_tokens: int
    completion_tokens: int


def _tokens_of(reply: _Reply) -> int:
    return reply.prompt_tokens + reply.completion_tokens


class OpenAIEngine:
    """The returned tokens are those that spell the reply in our tokenizer, plus the stop token if the reply ended by
    itself. Log-probs are 0.0, because they are unknown. `counts`: COUNTS, and the number of calls whose usage the
    endpoint did not report (`uncounted`)."""

    trainable = False

    def __init__(
        self,
        *,
        speech: Voice,
        run_seed: int,
        context_limit: int,
        base_url: str = "https://api.openai.com/v1",
        model: str | None = None,
        mode: Literal["chat", "completions"] = "chat",
        api_key_env: str | None = "OPENAI_API_KEY",
        extra: Mapping[str, Any] | None = None,
        max_context: int | None = 8192,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        timeout_s: float = 120.0,
        retries: int = 5,
        backoff_s: float = 1.0,
        max_response_bytes: int = 2**22,
        trust_env: bool = True,
        meter: Meter | None = None,
    ) -> None:
        """model: None = the model that the endpoint serves. extra: additional or replacing fields of the request; null
        removes a field. Prices are per 1,000 tokens. meter: records, replays and limits turns, as calls of the kind
        `policy`. Raises ConfigError."""
        self._prices = {"prompt_price": prompt_price, "completion_price": completion_price}
        for name, price in self._prices.items():
            if not (math.isfinite(price) and price >= 0):
                raise ConfigError(f"engine.{name}={price}; 0 or more is allowed")
        self.max_context = context_limit if max_context is None else max_context
        self.policy_version = 0
        self.counts = dict.fromkeys((*COUNTS, "uncounted"), 0.0)
        self._speech, self._run_seed, self._mode = speech, run_seed, mode
        self._model, self._extra = model, dict(extra or {})
        self._meter = meter
        if meter is not None:
            meter.in_use = True
        self._form: Form[_Reply] = Form(
            write=_Reply._asdict, read=lambda row: _Reply(**row), error=EngineError, unbilled=UNBILLED, cost=self._cost
        )
        self._client = JsonClient(
            url=base_url.rstrip("/") + ("/chat/completions" if mode == "chat" else "/completions"),
            error=EngineError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=(Secret(api_key_env),) if api_key_env else (),
            rate=RateLimiter(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute),
            setting="engine.timeout_s",
        )

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        room = room_for(token_ids, sampling, self.max_context)
        asked = time.monotonic()
        began = asked
        seed = seed_of(self._run_seed, key) % _SEEDS
        payload = self._payload(token_ids, sampling, room, seed)

        def begin() -> None:
            nonlocal began
            began = time.monotonic()

        async def live() -> _Reply:
            reply = await self._client.post(
                payload, self._read, seed=str(key), tokens=len(token_ids) + room, used=_tokens_of, begun=begin
            )
            self._count(reply)
            return reply

        if self._meter is None:
            reply = await live()
        else:
            # Include the seed, which `extra` may have removed: equal contexts are different turns.
            body = {"service": f"openai {self._mode}", "request": payload, "seed": seed}
            size = len(json.dumps(payload).encode())  # a token is at least one byte
            most = _Reply("", True, prompt_tokens=size, completion_tokens=room)
            request = Request(kind="policy", body=body, live=live, form=self._form, estimate=self._cost(most))
            reply = (await self._meter.ask(request)).value
        tokens, is_whole = self._turn(reply, token_ids, sampling)
        return Completion(
            token_ids=tokens[:room],
            logprobs=(0.0,) * len(tokens[:room]),
            finish_reason=FinishReason.STOP if is_whole and len(tokens) <= room else FinishReason.LENGTH,
            policy_version=self.policy_version,
            time_queue=began - asked,
            time_generate=time.monotonic() - began,
        )

    def release(self, key: SeedKey) -> None:
        """Nothing is stored."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise EngineError("engine=openai cannot score: the endpoint returns no log-probs of a prompt", kind="no_scores")

    async def load_weights(self, policy_version: int) -> None:
        """The endpoint's model does not change."""
        self.policy_version = policy_version

    async def close(self) -> None:
        await self._client.close()

    def _payload(self, token_ids: Sequence[int], sampling: SamplingParams, room: int, seed: int) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": room,
            "temperature": sampling.temperature,
            "seed": seed,
        }
        unusual = {"top_p": (sampling.top_p, 1.0), "top_k": (sampling.top_k, 0), "min_p": (sampling.min_p, 0.0)}
        body |= {name: value for name, (value, usual) in unusual.items() if value != usual}
        if self._mode == "chat":
            told = self._speech.messages(token_ids)
            body["messages"] = [{"role": m.role, "content": m.content} for m in told]
        else:
            body["prompt"] = self._speech.transcript(token_ids)
        return {field: value for field, value in {**body, **self._extra}.items() if value is not None}

    def _turn(self, reply: _Reply, context: Sequence[int], sampling: SamplingParams) -> tuple[tuple[int, ...], bool]:
        """Return the tokens, and whether the turn is complete."""
        tokens = self._speech.said(reply.text, after=context)
        tokens = tokens[: end_of(tokens, sampling, self._speech.transcript)]
        if is_ended(tokens, sampling, self._speech.transcript):
            return tokens, True
        return (*tokens, *(sampling.stop_token_ids[:1] if reply.is_whole else ())), reply.is_whole

    def _read(self, body: Any) -> _Reply:
        try:
            choice = body["choices"][0]
            text = choice["message"]["content"] if self._mode == "chat" else choice["text"]
            reason = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError) as e:
            raise EngineError(f"no choices[0] with a text in {json.dumps(body)[:200]}", kind="garbage") from e
        if text is not None and not isinstance(text, str):
            raise EngineError(f"the text is not a string in {json.dumps(body)[:200]}", kind="garbage")
        usage = body.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        prompt_tokens, completion_tokens = (
            n if isinstance(n := counts.get(name), int) and n >= 0 else 0 for name in COUNTS[1:3]
        )
        return _Reply(text or "", reason != "length", prompt_tokens, completion_tokens)

    def _count(self, reply: _Reply) -> None:
        self.counts["calls"] += 1
        self.counts["prompt_tokens"] += reply.prompt_tokens
        self.counts["completion_tokens"] += reply.completion_tokens
        self.counts["uncounted"] += not reply.prompt_tokens
        self.counts["cost"] += self._cost(reply)

    def _cost(self, reply: _Reply) -> float:
        prompt, completion = self._prices["prompt_price"], self._prices["completion_price"]
        return (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1000
