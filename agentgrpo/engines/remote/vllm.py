"""vLLM (0.32), through POST /v1/completions with prompts of token ids.

    vllm serve MODEL --logprobs-mode processed_logprobs [--enable-lora --max-lora-rank RANK]
    VLLM_MAX_STOP_STRINGS=16             if agents have more than the four stop strings allowed by default
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1   if an adapter is trained
    VLLM_SERVER_DEV_MODE=1               if a whole model is trained
    --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver
                                         and if it is sent over the network: engine.sync=gloo or nccl

Tied embeddings are written as two tensors (WeightFiles): for a model with tied embeddings, vLLM 0.32 on a CPU answers a
reload with 200 and continues with the old output layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError, EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SamplingParams, WeightFiles
from agentgrpo.engines.remote.engine import RemoteEngine
from agentgrpo.engines.remote.server import LEAST_BIAS, Access, Sampled, SamplingServer, Version
from agentgrpo.engines.remote.tempered import PROBED, is_tempered
from agentgrpo.engines.remote.vllm_weights import VLLMWeights, refuse_sync

STOPS = 4
"""Number of stop strings that a server accepts by default."""
_ID = "token_id:"
_SAMPLED: Mapping[str, Any] = {"logprobs": 0, "return_tokens_as_token_ids": True}
"""Request log-probs of the sampled tokens only, with their exact token ids."""


class Since:
    """Shares one query among concurrent callers; each caller gets an answer to a query that began after its call."""

    def __init__(self) -> None:
        self._asked = self._answered = 0
        self._answer = ""
        self._lock = asyncio.Lock()

    async def ask(self, ask: Callable[[], Awaitable[str]]) -> str:
        before = self._asked
        async with self._lock:
            if self._answered <= before:
                self._asked += 1
                number = self._asked
                self._answer = await ask()
                self._answered = number
            return self._answer


class VLLM:
    """The Dialect of vLLM. served_model: the servers' name of the model; None = the first listed model. unused_ids: see
    Dialect."""

    trainable = True

    def __init__(
        self, *, served_model: str | None = None, weights: VLLMWeights, unused_ids: Sequence[int] = ()
    ) -> None:
        self._served_model, self._weights = served_model, weights
        self.unused_ids = frozenset(unused_ids)
        self._bias = {"logit_bias": {str(i): LEAST_BIAS for i in unused_ids}} if unused_ids else {}

    async def look(self, server: SamplingServer) -> int | None:
        await server.get("/health", lambda _: None, is_json=False)
        cards = await server.get("/v1/models", _cards)
        card = next((c for c in cards if self._served_model in (None, c["id"])), None)
        if card is None:
            names = ", ".join(str(c["id"]) for c in cards)
            raise ConfigError(
                f"engine.served_model={self._served_model}; {server.shown} serves {names or 'nothing'}; name one of "
                "these, or null for the first"
            )
        mine = server.memory.get("adapter")
        server.memory.clear()
        server.memory |= {"model": card["id"], "adapter": mine}
        room = card.get("max_model_len")
        return room if isinstance(room, int) else None

    async def holds(self, server: SamplingServer, version: Version) -> bool:
        if version.is_adapter:
            return version.name in await server.get("/v1/models", lambda body: [c["id"] for c in _cards(body)])
        return await self._weights.of(server) == version.name

    async def install(self, server: SamplingServer, version: Version) -> None:
        has_adapter = version.is_adapter and await self.holds(server, version)
        await self._weights.install(server, version, has_adapter=has_adapter)

    async def sample(
        self,
        server: SamplingServer,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        version: Version | None,
    ) -> Sampled:
        is_plain = (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0) and not self.unused_ids
        if sampling.temperature not in (0.0, 1.0) or not is_plain:
            await self._refuse_raw(server, token_ids, sampling, version)
        payload = self._payload(server, token_ids, version) | {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": [s for s in sampling.stop if s],
            "stop_token_ids": list(sampling.stop_token_ids),
            "seed": seed,
            **_SAMPLED,
            **self._bias,
        }
        found: Sampled = await self._post(server, payload, version, _sampled)
        if version is None or version.is_adapter:
            return found
        since: Since = server.memory.setdefault("since", Since())
        if (now := await since.ask(lambda: self._weights.of(server))) != version.name:
            raise EngineError(f"{server.shown} has the weights {now}, and should have {version.name}", kind="stale")
        return found

    async def score(self, server: SamplingServer, token_ids: Sequence[int], version: Version | None) -> list[float]:
        payload = self._payload(server, token_ids, version) | {"max_tokens": 1, "temperature": 0.0}
        payload["prompt_logprobs"] = 0
        scores: list[float] = await self._post(server, payload, version, lambda body: _scores(body, token_ids))
        return scores

    def _payload(self, server: SamplingServer, token_ids: Sequence[int], version: Version | None) -> dict[str, Any]:
        """Return the fields of every request: no penalties, no stop tokens of the server's own, and no cached keys and
        values of other weights."""
        name = version.name if version is not None else "base"
        return {
            "model": name if version is not None and version.is_adapter else server.memory["model"],
            "prompt": list(token_ids),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": True,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "cache_salt": name,
        }

    async def _post(
        self, server: SamplingServer, payload: Mapping[str, Any], version: Version | None, read: Any
    ) -> Any:
        try:
            return await server.post("/v1/completions", payload, lambda body: read(_of(body, payload["model"])))
        except EngineError as e:
            if "HTTP 404" in str(e) and version is not None:  # it was restarted and lacks the adapter
                raise EngineError(str(e), kind="stale") from e
            if e.kind == "http_4xx" and len(stop := payload.get("stop", ())) > STOPS:
                raise ConfigError(
                    f"{server.shown} may take no more than {STOPS} stop strings, and the agent stops at {len(stop)}; "
                    f"start it with VLLM_MAX_STOP_STRINGS={2 * len(stop)}: {e}"
                ) from e
            raise

    async def _refuse_raw(
        self, server: SamplingServer, token_ids: Sequence[int], sampling: SamplingParams, version: Version | None
    ) -> None:
        """Raise ConfigError if log-probs are those of the untempered distribution, as a server returns by default."""

        async def sample(prompt: Sequence[int], temperature: float) -> Sampled:
            asked = {**self._payload(server, prompt, version), **_SAMPLED, **self._bias, "max_tokens": PROBED}
            asked |= {"temperature": temperature, "seed": 0}
            found: Sampled = await self._post(server, asked, version, _sampled)
            return found

        score = partial(self.score, server, version=version)
        if not await is_tempered(server, token_ids, (0.25, 2.0), sample=sample, score=score):
            masked = len(self.unused_ids)
            raise ConfigError(
                f"sampling with temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}, "
                f"min_p={sampling.min_p}{f', without the {masked} ids that are no token' if masked else ''}: "
                f"{server.shown} gives the log-probs of the distribution before these; start it with --logprobs-mode "
                f"processed_logprobs{'' if masked else ', or sample with 1.0, 1.0, 0, 0.0'}"
            )


def vllm(
    *,
    run_seed: int,
    context_limit: int,
    weights: WeightFiles,
    sync_dir: Path,
    rank: int,
    unused_ids: Sequence[int],
    urls: tuple[str, ...] = ("http://127.0.0.1:8000",),
    served_model: str | None = None,
    sync: str = "disk",
    sync_host: str | None = None,
    max_context: int | None = None,
    api_key_env: str | None = None,
    timeout_s: float = 600.0,
    sync_timeout_s: float = 600.0,
    attempts: int = 3,
    wait_s: float = 300.0,
    max_response_bytes: int = 2**26,
    trust_env: bool = True,
) -> RemoteEngine:
    """`engine: vllm`. context_limit: the model's own. unused_ids: see Dialect. Raises ConfigError."""
    refuse_sync(sync, weights)
    access = Access(
        api_key_env=api_key_env,
        timeout_s=timeout_s,
        sync_timeout_s=sync_timeout_s,
        max_response_bytes=max_response_bytes,
        trust_env=trust_env,
    )
    return RemoteEngine(
        dialect=VLLM(
            served_model=served_model,
            weights=VLLMWeights(sync, sync_host, weights.device),
            unused_ids=unused_ids,
        ),
        servers=[SamplingServer(url, access) for url in urls],
        run_seed=run_seed,
        max_context=context_limit if max_context is None else max_context,
        weights=weights,
        sync_dir=sync_dir,
        rank=rank,
        attempts=attempts,
        wait_s=wait_s,
        sync_timeout_s=sync_timeout_s,
    )


def _cards(body: Any) -> list[Mapping[str, Any]]:
    try:
        return [{"id": str(card["id"]), "max_model_len": card.get("max_model_len")} for card in body["data"]]
    except (KeyError, TypeError, AttributeError) as e:
        raise EngineError(f"no list of models in {str(body)[:200]}", kind="garbage") from e


def _of(body: Any, model: str) -> Mapping[str, Any]:
    """Return the only choice of a completion by `model`."""
    try:
        if body["model"] != model:
            raise EngineError(f"the model {str(body['model'])[:100]} answered, {model} was asked", kind="stale")
        [choice] = body["choices"]
        return {**choice, "completion_tokens": body["usage"]["completion_tokens"]}
    except (KeyError, TypeError, ValueError) as e:
        raise EngineError(f"no completion in {str(body)[:200]}", kind="garbage") from e


def _sampled(choice: Mapping[str, Any]) -> Sampled:
    try:
        found = choice["logprobs"]
        tokens = tuple(int(t.removeprefix(_ID)) for t in found["tokens"])
        logprobs = tuple(float(x) for x in found["token_logprobs"])
        reason = FinishReason(choice["finish_reason"])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise EngineError(f"no sampled tokens with log-probs in {str(choice)[:200]}", kind="garbage") from e
    if len(tokens) != choice["completion_tokens"]:
        raise EngineError(f"{len(tokens)} tokens, but {choice['completion_tokens']} by its own count", kind="garbage")
    return Sampled(tokens, logprobs, reason)


def _scores(choice: Mapping[str, Any], token_ids: Sequence[int]) -> list[float]:
    try:
        rows = choice["prompt_logprobs"]
        return [float(row[str(token)]["logprob"]) for row, token in zip(rows[1:], token_ids[1:], strict=True)]
    except (KeyError, TypeError, ValueError) as e:
        raise EngineError(f"no log-probs of the prompt's tokens in {str(choice)[:200]}", kind="garbage") from e
