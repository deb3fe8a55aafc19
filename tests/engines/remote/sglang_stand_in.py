"""A stand-in for an SGLang server: its paths and fields on a real socket, our own engine and a tiny model behind them.

Written after SGLang's own sources (http_server.py, io_struct.py, schedule_batch.py, sampler.py). What it cannot show is
how a real one computes, or what a release of it does otherwise."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.training.adapters import load_adapter
from tests.engines.remote.stand_in import Refused, StandIn, biased, tensors_of


class SGLangStandIn(StandIn):
    """logprobs_mode="raw_logprobs": as under SGLANG_RETURN_ORIGINAL_LOGPROB. busy: times that /flush_cache finds
    something left. is_paused: nothing is sampled."""

    busy = 0
    is_paused = False

    async def _answer(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, reply = "200 OK", b""
        try:
            self.refuse_if_down()
            if path == "/generate":
                self.requests.append(body)
                reply = json.dumps(await self._unless_left(self._generated(body, writer), reader)).encode()
            else:
                self.orders.append((path, body))
                reply = json.dumps(self._told(path, body)).encode()
        except Refused as e:
            status, reply = e.status, json.dumps({"error": {"message": str(e)}}).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(reply)}\r\n\r\n".encode() + reply)
        await writer.drain()

    def _told(self, path: str, body: Any) -> Any:
        if path == "/v1/models":
            room = {"base": self.max_model_len}
            return {"data": [{"id": name, "root": name, "max_model_len": room.get(name)} for name in self.names]}
        if path == "/model_info" and self.dev_mode:
            return {"model_path": "base", "is_generation": True, "weight_version": self.weights}
        if path in ("/pause_generation", "/continue_generation"):
            self.is_paused = path == "/pause_generation"
            return {"message": "Generation paused successfully.", "status": "ok"}
        if path == "/flush_cache":
            if self.busy:
                self.busy -= 1
                raise Refused("400 Bad Request", "Flush cache failed.")
            return "Cache flushed."
        if path == "/update_weights_from_disk" and self.dev_mode:
            assert self.is_paused
            self._reload(tensors_of(Path(body["model_path"])))
            self.weights = body["weight_version"]
            return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        if path == "/load_lora_adapter":
            if not self.lora or body["lora_name"] in self._engines:
                raise Refused("400 Bad Request", "LoRA is not enabled." if not self.lora else "already loaded")
            model = copy.deepcopy(self._as_started)
            load_adapter(model, Path(body["lora_path"]))
            self._engines[body["lora_name"]] = self._engine(model)
            return {"success": True}
        if path == "/unload_lora_adapter":
            if self._engines.pop(body["lora_name"], None) is None:
                raise Refused("400 Bad Request", f"{body['lora_name']} is not loaded")
            return {"success": True}
        raise Refused("404 Not Found", "Not Found")

    async def _generated(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> Any:
        while self.is_paused:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        engine = self._engines.get(body.get("lora_path", "base"))
        if engine is None:
            raise Refused("400 Bad Request", "The following requested LoRA adapters are not loaded")
        prompt, params = body["input_ids"], body["sampling_params"]
        meta: dict[str, Any] = {"id": "x", "prompt_tokens": len(prompt), "weight_version": self.weights}
        tokens: list[int] = []
        fault = self.faults.pop(0) if self.faults and params["max_new_tokens"] else ""
        try:
            if "logprob_start_len" in body:
                scores = [None, *await engine.score(prompt)]
                meta["input_token_logprobs"] = [[s, t, None] for s, t in zip(scores, prompt, strict=True)]
            if params["max_new_tokens"]:
                await asyncio.sleep(self.pause_s)
                await self._before(fault, writer)
                tokens, found = await self._tokens(engine, prompt, params)
                meta |= found
        except EngineError as e:
            raise Refused("400 Bad Request", str(e)) from e
        meta["completion_tokens"] = len(tokens)
        if fault == "stale":
            meta["weight_version"] = "default"
        if fault == "a token too many":
            meta["completion_tokens"] += 1
        if fault == "no logprobs":
            del meta["output_token_logprobs"]
        if fault == "aborted":
            meta["finish_reason"] = {"type": "abort", "message": "Aborted"}
        return {"text": self._tokenizer.decode(tokens), "output_ids": tokens, "meta_info": meta}

    async def _tokens(self, engine: HFEngine, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], Any]:
        assert "ignore_eos" not in params  # with it stop_token_ids mean nothing
        assert params["no_stop_trim"] is True
        sampling = SamplingParams(
            max_tokens=params["max_new_tokens"],
            temperature=params["temperature"],
            stop=tuple(params.get("stop", ())),
            stop_token_ids=tuple(params.get("stop_token_ids", ())),
        )
        biased(engine, params.get("logit_bias", {}))
        key = SeedKey(str(params.get("sampling_seed")), "", 0, 0)
        try:
            done = await engine.generate(prompt, sampling, key)
        finally:
            engine.release(key)
        tokens, logprobs = list(done.token_ids), list(done.logprobs)
        if self.logprobs_mode == "raw_logprobs":
            logprobs = (await engine.score([*prompt, *tokens]))[len(prompt) - 1 :]
        reason = {"type": str(done.finish_reason)}
        if len(tokens) == sampling.max_tokens:  # looked at before what stops a turn
            reason = {"type": "length"}
        rows = [[logprob, token, None] for logprob, token in zip(logprobs, tokens, strict=True)]
        return tokens, {"output_token_logprobs": rows, "finish_reason": reason}
