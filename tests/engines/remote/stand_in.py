"""A stand-in for a vLLM server: its paths and fields on a real socket, our own engine and a tiny model behind them.

What it does and answers follows vLLM 0.32's own code. What it cannot show is how vLLM computes: make test-vllm does."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.remote.transfer import WeightReceiver
from agentgrpo.engines.vocabulary import Vocabulary
from agentgrpo.training.adapters import load_adapter

Write = Callable[[bytes], Awaitable[None]]


class Refused(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class StandIn:
    """`async with StandIn(model, tokenizer) as server`. What may go wrong:

    faults         one for each completion that samples, the first first; see `_before` and `_broken`
    lasts          after so many completions every request is answered by 503
    is_stale       a reload answers 200 and changes nothing
    receives       it is started with --worker-extension-cls, by which weights can be sent to it
    workers        processes that it has; lost_workers of them never call
    logprobs_mode  as vLLM's option
    restart        the process dies and comes back as it was started; with stay_down only once `start` is called

    orders: the paths of all but completions, in order, with what they say. requests: bodies of completions. aborted:
    calls that their client has left."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        logprobs_mode: str = "processed_logprobs",
        dev_mode: bool = True,
        lora: bool = True,
        max_model_len: int = 512,
    ) -> None:
        self.faults: list[str] = []
        self.is_stale = False
        self.receives, self.workers, self.lost_workers = True, 1, 0
        self.lasts = 10**9
        self.logprobs_mode, self.dev_mode, self.lora, self.max_model_len = logprobs_mode, dev_mode, lora, max_model_len
        self.orders: list[tuple[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.aborted = 0
        self.pause_s = 0.0
        self.max_stops = 4
        self._as_started, self._tokenizer = model, tokenizer
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._forget()

    def _forget(self) -> None:
        self.weights = "default"
        self._engines = {"base": self._engine(copy.deepcopy(self._as_started))}

    def _engine(self, model: PreTrainedModel) -> HFEngine:
        engine = HFEngine(model=model, tokenizer=self._tokenizer, run_seed=0, max_context=self.max_model_len)
        biased(engine, {})
        return engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def names(self) -> list[str]:
        return list(self._engines)

    async def __aenter__(self) -> StandIn:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._forget()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = [int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(length[0]) if length else b""
                path = head.split(" ")[1]
                await self._answer(path, json.loads(body) if body else None, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client has left
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, reply = "200 OK", b""
        try:
            self.refuse_if_down()
            if path == "/v1/completions":
                self.requests.append(body)
                reply = json.dumps(await self._unless_left(self._completion(body, writer), reader)).encode()
            else:
                self.orders.append((path, body))
                reply = await self._obey(path, body)
        except Refused as e:
            status, reply = e.status, json.dumps({"error": {"message": str(e)}}).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(reply)}\r\n\r\n".encode() + reply)
        await writer.drain()

    def refuse_if_down(self) -> None:
        if len(self.requests) >= self.lasts:
            raise Refused("503 Service Unavailable", "down")

    async def _unless_left(self, work: Any, reader: asyncio.StreamReader) -> Any:
        """A client that leaves has its call aborted."""
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self.aborted += 1
                raise ConnectionError
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _obey(self, path: str, body: Any) -> bytes:
        if path == "/health":
            return b""
        if path == "/v1/models":
            cards = [
                {"id": name, "max_model_len": self.max_model_len if name == "base" else None} for name in self.names
            ]
            return json.dumps({"data": cards}).encode()
        if path == "/v1/load_lora_adapter" and self.lora:
            if body["lora_name"] in self._engines:
                raise Refused("400 Bad Request", f"{body['lora_name']} has already been loaded")
            model = copy.deepcopy(self._as_started)
            load_adapter(model, Path(body["lora_path"]))
            self._engines[body["lora_name"]] = self._engine(model)
            return b"Success: LoRA adapter added successfully."
        if path == "/v1/unload_lora_adapter" and self.lora:
            if self._engines.pop(body["lora_name"], None) is None:
                raise Refused("404 Not Found", f"{body['lora_name']} cannot be found")
            return b"Success: LoRA adapter removed successfully."
        if self.dev_mode and path == "/weight_info":
            return json.dumps({"weight_version": self.weights}).encode()
        if self.dev_mode and path == "/update_weight_version":
            self.weights = body["new_version"]
            return b'{"success": true}'
        if self.dev_mode and path == "/reset_prefix_cache":
            return b'{"success": true}'
        if self.dev_mode and path == "/collective_rpc":
            if body["method"] == "reload_weights":
                self._reload(tensors_of(Path(body["kwargs"]["weights_path"])))
            else:
                await self._receive(body["method"], body["kwargs"])
            return b'{"results": [null]}'
        if self.dev_mode and path == "/get_world_size":
            return json.dumps({"world_size": self.workers}).encode()
        raise Refused("404 Not Found", "Not Found")

    async def _receive(self, method: str, call: dict[str, Any]) -> None:
        """By what a worker of vLLM inherits, in a thread for each."""
        if not self.receives:
            raise Refused("500 Internal Server Error", f"Worker failed with error 'no attribute {method!r}'")
        workers = [Worker() for _ in range(self.workers - self.lost_workers)]
        await asyncio.gather(*(asyncio.to_thread(getattr(worker, method), **call) for worker in workers))
        if all(worker.tensors for worker in workers):
            assert all(worker.tensors.keys() == workers[0].tensors.keys() for worker in workers)
            self._reload(workers[-1].tensors)

    def _reload(self, found: dict[str, torch.Tensor]) -> None:
        """Every tensor into the live model; a tied output layer only from one of its own, as vLLM's CPU kernels have
        it."""
        if self.is_stale:
            return
        model = copy.deepcopy(self._as_started)
        model.load_state_dict({**found, "lm_head.weight": found["lm_head.weight"]})
        self._engines["base"] = self._engine(model)

    async def _completion(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> Any:
        engine, prompt = self._engines.get(body["model"]), body["prompt"]
        if engine is None:
            raise Refused("404 Not Found", f"The model `{body['model']}` does not exist.")
        choice: dict[str, Any] = {"index": 0, "text": ""}
        tokens: list[int] = [0]
        if "prompt_logprobs" in body:
            scores = await engine.score(prompt)
            rows = [{str(t): {"logprob": s}} for t, s in zip(prompt[1:], scores, strict=True)]
            choice |= {"prompt_logprobs": [None, *rows], "finish_reason": "length"}
        else:
            fault = self.faults.pop(0) if self.faults else ""
            await asyncio.sleep(self.pause_s)
            await self._before(fault, writer)
            try:
                tokens, found = await self._sampled(engine, body)
            except EngineError as e:
                raise Refused("400 Bad Request", str(e)) from e
            choice |= _broken(fault, found)
        usage = {"completion_tokens": len(tokens)}
        return {"model": body["model"], "choices": [choice], "usage": usage}

    async def _before(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "500":
            raise Refused("500 Internal Server Error", "EngineCore encountered an issue")
        if fault == "reset":
            writer.transport.abort()
            raise ConnectionError
        if fault == "hang":
            await asyncio.Event().wait()
        while fault == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def _sampled(self, engine: HFEngine, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        if len(body.get("stop", ())) > self.max_stops:
            raise Refused("400 Bad Request", f"body.stop: list should have at most {self.max_stops} items")
        if not 0 <= body["temperature"] <= 2:
            raise Refused("400 Bad Request", "temperature must be in [0, 2]")
        assert body["ignore_eos"] is True
        assert body["include_stop_str_in_output"] is True
        sampling = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            min_p=body.get("min_p", 0.0),
            stop=tuple(body.get("stop", ())),
            stop_token_ids=tuple(body.get("stop_token_ids", ())),
        )
        biased(engine, body.get("logit_bias", {}))
        key = SeedKey(str(body["seed"]), "", 0, 0)
        try:
            done = await engine.generate(body["prompt"], sampling, key)
        finally:
            engine.release(key)
        tokens, logprobs = list(done.token_ids), list(done.logprobs)
        if self.logprobs_mode == "raw_logprobs":
            logprobs = (await engine.score([*body["prompt"], *tokens]))[len(body["prompt"]) - 1 :]
        found = {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": logprobs}
        return tokens, {"logprobs": found, "finish_reason": str(done.finish_reason)}


def biased(engine: HFEngine, logit_bias: dict[str, float]) -> None:
    """A server samples from all rows of the output layer, but for those that a request rules out."""
    assert set(logit_bias.values()) <= {-100.0}
    rows = engine._vocabulary.rows
    engine._vocabulary = Vocabulary(rows, rows, tuple(map(int, logit_bias)), ())


class Worker(WeightReceiver):
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def reload_weights(self, *, weights_iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.tensors = dict(weights_iterator)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def _broken(fault: str, choice: dict[str, Any]) -> dict[str, Any]:
    found = choice["logprobs"]
    if fault == "garbage":
        return {"finish_reason": "stop", "logprobs": "none"}
    if fault == "no logprobs":
        return {**choice, "logprobs": None}
    if fault == "a token too many":
        return {**choice, "logprobs": {**found, "tokens": [*found["tokens"], "token_id:1"]}}
    if fault == "short":
        cut = {name: column[:-1] for name, column in found.items()}
        return {**choice, "logprobs": cut}
    if fault == "none":
        return {**choice, "logprobs": {"tokens": [], "token_logprobs": []}}
    if fault == "a log-prob too few":
        return {**choice, "logprobs": {**found, "token_logprobs": found["token_logprobs"][:-1]}}
    if fault == "a positive log-prob":
        return {**choice, "logprobs": {**found, "token_logprobs": [0.5] * len(found["tokens"])}}
    if fault == "aborted":
        return {**choice, "finish_reason": "abort"}
    return choice


@torch.no_grad()
def moved(model: PreTrainedModel, by: float = 0.05) -> PreTrainedModel:
    """Another version of `model`."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.add_(by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return other
