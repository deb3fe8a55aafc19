"""SGLang, through its native POST /generate with input_ids.

    python -m sglang.launch_server --model-path MODEL [--enable-lora --max-lora-rank RANK --lora-target-modules all]

A whole model is reloaded from disk and named by its version, which every reply reports. An adapter is loaded under a
new name for each version, so that a server that has another version, or none, cannot answer.

Log-probs are those of the distribution after the temperature and before top_p, top_k and min_p (with
SGLANG_RETURN_ORIGINAL_LOGPROB on the server, also before the temperature). A turn may also end with one of the model's
eos tokens, because ignore_eos would switch off stop_token_ids as well. The seed has an effect only under
--enable-deterministic-inference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError, EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SamplingParams, WeightFiles
from agentgrpo.engines.remote.engine import RemoteEngine
from agentgrpo.engines.remote.server import LEAST_BIAS, Access, Sampled, SamplingServer, Version
from agentgrpo.engines.remote.tempered import PROBED, is_tempered

FLUSHES = 60
FLUSH_PAUSE_S = 0.5


class SGLang:
    """The Dialect of SGLang."""

    trainable = True

    def __init__(self, unused_ids: Sequence[int] = ()) -> None:
        """unused_ids: see Dialect."""
        self.unused_ids = frozenset(unused_ids)
        self._bias = {"logit_bias": {str(i): LEAST_BIAS for i in unused_ids}} if unused_ids else {}

    async def look(self, server: SamplingServer) -> int | None:
        """Does not use /health, which samples a token and would hang on a server that was left paused."""
        mine = server.memory.get("adapter")
        server.memory.clear()
        cards = await server.get("/v1/models", _cards)
        server.memory["adapter"] = mine
        room = next((card.get("max_model_len") for card in cards), None)
        return room if isinstance(room, int) else None

    async def holds(self, server: SamplingServer, version: Version) -> bool:
        if version.is_adapter:
            return version.name in await server.get("/v1/models", lambda body: [card["id"] for card in _cards(body)])
        return await server.get("/model_info", _weight_version) == version.name

    async def install(self, server: SamplingServer, version: Version) -> None:
        try:
            if version.is_adapter:
                await self._load_adapter(server, version)
            else:
                await self._reload(server, version)
        except EngineError as e:
            if "HTTP 404" in str(e) and e.kind == "http_4xx":
                raise ConfigError(
                    f"{server.shown} takes no weights: {e}; use SGLang 0.5.6 or later, which has /model_info"
                ) from e
            if e.kind == "http_4xx":  # http_4xx would count as the request's own fault
                hint = f"; {_LORA}" if version.is_adapter else ""
                raise EngineError(f"{e}{hint}", kind="refused") from e
            raise

    async def _load_adapter(self, server: SamplingServer, version: Version) -> None:
        if await self.holds(server, version):
            await server.order("/unload_lora_adapter", {"lora_name": version.name})
        await server.order("/load_lora_adapter", {"lora_name": version.name, "lora_path": str(version.folder)})
        older, server.memory["adapter"] = server.memory.get("adapter"), version.name
        if older not in (None, version.name):
            await server.order("/unload_lora_adapter", {"lora_name": older})

    async def _reload(self, server: SamplingServer, version: Version) -> None:
        await server.order("/pause_generation", {"mode": "abort"})
        try:
            await _flush(server)
            reload = {"model_path": str(version.folder), "weight_version": version.name, "flush_cache": True}
            await server.order("/update_weights_from_disk", reload)
        finally:
            await server.order("/continue_generation", {})

    async def sample(
        self,
        server: SamplingServer,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        version: Version | None,
    ) -> Sampled:
        if (sampling.top_p, sampling.top_k, sampling.min_p) != (1.0, 0, 0.0):
            raise ConfigError(
                f"sampling with top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}: SGLang gives "
                "the log-probs of the distribution before these; sample with 1.0, 0, 0.0"
            )
        if sampling.temperature not in (0.0, 1.0):
            await self._refuse_raw(server, token_ids, sampling.temperature, version)
        return await self._sample(server, token_ids, sampling, seed, version)

    async def score(self, server: SamplingServer, token_ids: Sequence[int], version: Version | None) -> list[float]:
        payload = _payload(token_ids, {"max_new_tokens": 0, "temperature": 1.0}, version) | {"logprob_start_len": 0}
        scores: list[float] = await self._post(server, payload, version, lambda meta, _: _scores(meta, token_ids))
        return scores

    async def _sample(
        self,
        server: SamplingServer,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        version: Version | None,
    ) -> Sampled:
        asked = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "stop": [s for s in sampling.stop if s],
            "stop_token_ids": list(sampling.stop_token_ids),
            "sampling_seed": seed,
            **self._bias,
        }
        payload = _payload(token_ids, asked, version)
        found: Sampled = await self._post(server, payload, version, lambda meta, text: _sampled(meta, text, sampling))
        return found

    async def _post(
        self, server: SamplingServer, payload: Mapping[str, Any], version: Version | None, read: Any
    ) -> Any:
        try:
            return await server.post("/generate", payload, lambda body: read(*_of(body, version)))
        except EngineError as e:
            if e.kind != "http_4xx" or version is None or not version.is_adapter or await self.holds(server, version):
                raise
            raise EngineError(str(e), kind="stale") from e  # it was restarted and lacks the adapter

    async def _refuse_raw(
        self, server: SamplingServer, token_ids: Sequence[int], temperature: float, version: Version | None
    ) -> None:
        """Raise ConfigError if log-probs are those of the untempered distribution."""

        async def sample(prompt: Sequence[int], temperature: float) -> Sampled:
            hot = SamplingParams(max_tokens=PROBED, temperature=temperature)
            return await self._sample(server, prompt, hot, 0, version)

        score = partial(self.score, server, version=version)
        if not await is_tempered(server, token_ids, (0.25, 8.0), sample=sample, score=score):
            raise ConfigError(
                f"sampling with temperature={temperature}: {server.shown} gives log-probs without it; start it without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB, or sample with 1.0"
            )


def sglang(
    *,
    run_seed: int,
    context_limit: int,
    weights: WeightFiles,
    sync_dir: Path,
    rank: int,
    unused_ids: Sequence[int],
    urls: tuple[str, ...] = ("http://127.0.0.1:30000",),
    max_context: int | None = None,
    api_key_env: str | None = None,
    timeout_s: float = 600.0,
    sync_timeout_s: float = 600.0,
    attempts: int = 3,
    wait_s: float = 300.0,
    max_response_bytes: int = 2**26,
    trust_env: bool = True,
) -> RemoteEngine:
    """`engine: sglang`. context_limit: the model's own. unused_ids: see Dialect. Raises ConfigError."""
    access = Access(
        api_key_env=api_key_env,
        timeout_s=timeout_s,
        sync_timeout_s=sync_timeout_s,
        max_response_bytes=max_response_bytes,
        trust_env=trust_env,
    )
    return RemoteEngine(
        dialect=SGLang(unused_ids),
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


_LORA = "start it with --enable-lora --max-lora-rank RANK --lora-target-modules all, where it can read run.dir"


def _payload(token_ids: Sequence[int], sampling: Mapping[str, Any], version: Version | None) -> dict[str, Any]:
    """Return the fields of every request: the whole turn comes back exactly as it was sampled."""
    adapter = {"lora_path": version.name} if version is not None and version.is_adapter else {}
    as_sampled = {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    return {
        "input_ids": list(token_ids),
        "sampling_params": {**as_sampled, **sampling},
        "return_logprob": True,
        **adapter,
    }


async def _flush(server: SamplingServer) -> None:
    """Wait until the server has no sampling left, because a reload during sampling would end the server."""
    for attempt in range(1, FLUSHES + 1):
        try:
            await server.order("/flush_cache", {})
            return
        except EngineError as e:
            if e.kind != "http_4xx" or "HTTP 404" in str(e) or attempt == FLUSHES:
                raise
        await asyncio.sleep(FLUSH_PAUSE_S)


def _cards(body: Any) -> list[Mapping[str, Any]]:
    try:
        return [{"id": str(card["id"]), "max_model_len": card.get("max_model_len")} for card in body["data"]]
    except (KeyError, TypeError, AttributeError) as e:
        raise EngineError(f"no list of models in {str(body)[:200]}", kind="garbage") from e


def _weight_version(body: Any) -> str:
    try:
        return str(body["weight_version"])
    except (KeyError, TypeError) as e:
        raise EngineError(f"no weight_version in {str(body)[:200]}", kind="garbage") from e


def _of(body: Any, version: Version | None) -> tuple[Mapping[str, Any], str]:
    """Return meta_info and text of a reply. Raises EngineError (`stale`) if weights other than `version` produced
    it."""
    try:
        meta, text = body["meta_info"], str(body["text"])
        held = str(meta["weight_version"]) if version is not None and not version.is_adapter else None
    except (KeyError, TypeError) as e:
        raise EngineError(f"no meta_info in {str(body)[:200]}", kind="garbage") from e
    if version is not None and held not in (None, version.name):
        raise EngineError(f"the weights {str(held)[:100]} answered, {version.name} were asked", kind="stale")
    return meta, text


def _sampled(meta: Mapping[str, Any], text: str, sampling: SamplingParams) -> Sampled:
    try:
        rows = [(float(row[0]), int(row[1])) for row in meta["output_token_logprobs"]]
        counted, reason = int(meta["completion_tokens"]), FinishReason(meta["finish_reason"]["type"])
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise EngineError(f"no sampled tokens with log-probs in {str(meta)[:200]}", kind="garbage") from e
    if len(rows) != counted:
        raise EngineError(f"{len(rows)} tokens, but {counted} by its own count", kind="garbage")
    tokens = tuple(token for _, token in rows)
    # SGLang reports a turn that stops with its last allowed token as truncated
    if (tokens and tokens[-1] in sampling.stop_token_ids) or any(s in text for s in sampling.stop if s):
        reason = FinishReason.STOP
    return Sampled(tokens, tuple(logprob for logprob, _ in rows), reason)


def _scores(meta: Mapping[str, Any], token_ids: Sequence[int]) -> list[float]:
    try:
        rows = [(row[0], int(row[1])) for row in meta["input_token_logprobs"]]
        if [token for _, token in rows] != list(token_ids):
            raise ValueError("other tokens than requested")
        return [float(logprob) for logprob, _ in rows[1:]]
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise EngineError(f"no log-probs of the prompt's tokens in {str(meta)[:200]}", kind="garbage") from e
