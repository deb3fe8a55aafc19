"""Give weights to a vLLM server, and ask which weights it has.

an adapter       is loaded from disk under a new name for each version, so that a server that has another version, or
                 none, cannot answer
a whole model    replaces the server's own, from disk (sync=disk) or over the network (sync=gloo, nccl: transfer); its
                 name is the version, which is checked on the server again after each turn
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import torch

from agentgrpo.core.errors import ConfigError, EngineError
from agentgrpo.engines.base import WeightFiles
from agentgrpo.engines.remote.server import SamplingServer, Version
from agentgrpo.engines.remote.transfer import BACKENDS, GivenUp, Sending, TransferError, WeightReceiver

LOADING = "agentgrpo-loading"
"""Name of the weights of a server while it is loading new ones."""
SYNCS = ("disk", *BACKENDS)
GIVE_UP_S = 5.0
"""Seconds to wait for an abandoned transfer to end by itself."""
RECEIVE = WeightReceiver.agentgrpo_receive.__name__


class VLLMWeights:
    """sync: one of SYNCS. sync_host: the address of this machine at which servers fetch weights; None = the one on the
    route to each server. device: the device of the weights."""

    def __init__(self, sync: str, sync_host: str | None, device: torch.device) -> None:
        self._sync, self._sync_host, self._device = sync, sync_host, device

    async def of(self, server: SamplingServer) -> str:
        """Return the name of the server's whole model. Raises ConfigError if the server does not report it."""
        try:
            timeout_s = server.access.timeout_s  # the model's process answers between its steps, which may take long
            return await server.get("/weight_info", lambda body: str(body["weight_version"]), timeout_s=timeout_s)
        except EngineError as e:
            if e.kind != "http_4xx":
                raise
            raise ConfigError(f"{server.shown} does not say which weights it has; {_DEV_MODE}") from e

    async def install(self, server: SamplingServer, version: Version, *, has_adapter: bool) -> None:
        """Make the server use `version`. has_adapter: an adapter of this name is already loaded."""
        try:
            if version.is_adapter:
                await self._load_adapter(server, version, has_adapter)
            else:
                await self._replace(server, version)
        except EngineError as e:
            if "HTTP 404" in str(e) and e.kind == "http_4xx":
                raise ConfigError(_missing(server, version, str(e))) from e
            if e.kind == "http_4xx":  # http_4xx would count as the request's own fault
                raise EngineError(str(e), kind="refused") from e
            raise

    async def _load_adapter(self, server: SamplingServer, version: Version, is_there: bool) -> None:
        if is_there:
            await server.order("/v1/unload_lora_adapter", {"lora_name": version.name})
        await server.order("/v1/load_lora_adapter", {"lora_name": version.name, "lora_path": str(version.folder)})
        older, server.memory["adapter"] = server.memory.get("adapter"), version.name
        if older not in (None, version.name):
            await server.order("/v1/unload_lora_adapter", {"lora_name": older})

    async def _replace(self, server: SamplingServer, version: Version) -> None:
        await server.order("/update_weight_version", {"new_version": LOADING})
        if self._sync == "disk":
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(version.folder)}}
            await server.order("/collective_rpc", reload)
        else:
            await self._send(server, version)
        await server.order("/reset_prefix_cache", {})
        await server.order("/update_weight_version", {"new_version": version.name})

    async def _send(self, server: SamplingServer, version: Version) -> None:
        """Send the weights over the network. Raises EngineError (transfer) if they did not arrive, and ConfigError if
        the server cannot receive any."""
        receivers = await server.get("/get_world_size", lambda body: int(body["world_size"]))
        try:
            sending = Sending(
                version.folder,
                server_host=urlsplit(server.url).hostname or "",
                receivers=receivers,
                backend=self._sync,
                timeout_s=server.access.sync_timeout_s,
                device=self._device,
                host=self._sync_host,
            )
        except TransferError as e:
            raise EngineError(str(e), kind="transfer") from e
        order = asyncio.ensure_future(server.order("/collective_rpc", {"method": RECEIVE, "kwargs": sending.call}))
        sent = _in_thread(sending.run)
        for ending in (order, sent):
            ending.add_done_callback(_look_at)
        try:
            await asyncio.wait((order, sent), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            sending.give_up()
            order.cancel()
            await asyncio.wait((order, sent), timeout=GIVE_UP_S)
        _refuse_failed(server, order, sent)


def _refuse_failed(server: SamplingServer, order: asyncio.Future[None], sent: asyncio.Future[None]) -> None:
    told = None if order.cancelled() else order.exception()
    if told is not None and RECEIVE in str(told):  # its workers lack this method
        raise ConfigError(f"{server.shown} cannot be sent weights; {_RECEIVER}: {told}") from told
    failure = sent.exception() if sent.done() else TransferError("the transfer hangs")
    if failure is not None and not isinstance(failure, GivenUp):
        raise EngineError(f"{server.shown} was not sent the weights: {failure}", kind="transfer") from failure
    if told is not None:
        raise told


def _look_at(ended: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned future, so that asyncio does not report it as never retrieved."""
    if not ended.cancelled():
        ended.exception()


def _in_thread(run: Callable[[], None]) -> asyncio.Future[None]:
    """Run `run` in a daemon thread and return a future of its outcome: a thread that hangs can only be abandoned, but
    does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            run()
        except Exception as e:
            error = e
        with suppress(RuntimeError):  # the loop is closed, and no one awaits the outcome
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=work, name="agentgrpo-transfer", daemon=True).start()
    return outcome


def refuse_sync(sync: str, weights: WeightFiles) -> None:
    """Raise ConfigError if these weights cannot be sent in this way."""
    if sync not in SYNCS:
        raise ConfigError(f"engine.sync={sync}; {', '.join(SYNCS)} are allowed")
    if sync == "nccl" and weights.device.type != "cuda":
        raise ConfigError(
            f"engine.sync=nccl, and the model is on {weights.device}; engine.sync=gloo needs no CUDA device"
        )
    if weights.is_adapter and sync != "disk":
        raise ConfigError(
            f"engine.sync={sync}, and an adapter is trained, which vLLM loads from disk: engine.sync=disk"
        )


_DEV_MODE = "a whole model is trained, so start it with VLLM_SERVER_DEV_MODE=1, or train an adapter: model.lora.rank=16"
_RECEIVER = (
    "start it with --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver, or use engine.sync=disk"
)


def _missing(server: SamplingServer, version: Version, error: str) -> str:
    if version.is_adapter:
        how = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, on a file system that holds run.dir"
        return f"{server.shown} takes no adapters: {error}; {how}"
    return f"{server.shown} takes no weights: {error}; {_DEV_MODE}"
