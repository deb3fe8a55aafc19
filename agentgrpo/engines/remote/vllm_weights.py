"""How a vLLM server is given weights, and asked which it has.

an adapter       loaded from disk under a new name for each version, so that a server that has another one, or none,
                 cannot answer
a whole model    in place of the server's own, from disk (sync=disk) or over the network (sync=gloo, nccl: transfer);
                 named by its version, for which the server is asked again after each turn
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import torch

from agentgrpo.engines.base import WeightFiles
from agentgrpo.engines.remote.dialect import Version
from agentgrpo.engines.remote.server import Server
from agentgrpo.engines.remote.transfer import BACKENDS, Sending, TransferError, WeightReceiver
from agentgrpo.errors import ConfigError, EngineError

LOADING = "agentgrpo-loading"
"""Name of the weights of a server that is being given others."""
SYNCS = ("disk", *BACKENDS)
RECEIVE = WeightReceiver.agentgrpo_receive.__name__


class VLLMWeights:
    """sync: one of SYNCS."""

    def __init__(self, sync: str = "disk") -> None:
        self._sync = sync

    async def of(self, server: Server) -> str:
        """The name of the whole model that it has. Raises ConfigError where the server does not say it."""
        try:
            timeout_s = server.access.timeout_s  # the model's process answers, between its steps
            return await server.get("/weight_info", lambda body: str(body["weight_version"]), timeout_s=timeout_s)
        except EngineError as e:
            if e.kind != "http_4xx":
                raise
            raise ConfigError(f"{server.shown} does not say which weights it has; {_DEV_MODE}") from e

    async def install(self, server: Server, version: Version, *, has_adapter: bool) -> None:
        """has_adapter: one of this name is there already."""
        try:
            if version.is_adapter:
                await self._load_adapter(server, version, has_adapter)
            else:
                await self._replace(server, version)
        except EngineError as e:
            if "HTTP 404" in str(e) and e.kind == "http_4xx":
                raise ConfigError(_missing(server, version, str(e))) from e
            if e.kind == "http_4xx":  # which would not be the server's fault
                raise EngineError(str(e), kind="refused") from e
            raise

    async def _load_adapter(self, server: Server, version: Version, is_there: bool) -> None:
        if is_there:
            await server.order("/v1/unload_lora_adapter", {"lora_name": version.name})
        await server.order("/v1/load_lora_adapter", {"lora_name": version.name, "lora_path": str(version.folder)})
        older, server.memory["adapter"] = server.memory.get("adapter"), version.name
        if older not in (None, version.name):
            await server.order("/v1/unload_lora_adapter", {"lora_name": older})

    async def _replace(self, server: Server, version: Version) -> None:
        await server.order("/update_weight_version", {"new_version": LOADING})
        if self._sync == "disk":
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(version.folder)}}
            await server.order("/collective_rpc", reload)
        else:
            await self._send(server, version)
        await server.order("/reset_prefix_cache", {})
        await server.order("/update_weight_version", {"new_version": version.name})

    async def _send(self, server: Server, version: Version) -> None:
        receivers = await server.get("/get_world_size", lambda body: int(body["world_size"]))
        host, timeout_s = urlsplit(server.url).hostname or "", server.access.sync_timeout_s
        try:
            sending = Sending(
                version.folder, server_host=host, receivers=receivers, backend=self._sync, timeout_s=timeout_s
            )
        except TransferError as e:
            raise EngineError(str(e), kind="transfer") from e
        running = asyncio.create_task(asyncio.to_thread(sending.run))
        try:
            await server.order("/collective_rpc", {"method": RECEIVE, "kwargs": sending.call})
        except EngineError as e:
            if RECEIVE in str(e):  # as the name of a method that its workers have not
                raise ConfigError(f"{server.shown} cannot be sent weights; {_RECEIVER}: {e}") from e
            raise
        finally:
            sending.give_up()  # what has been sent has been received
            [outcome] = await asyncio.gather(running, return_exceptions=True)
        if isinstance(outcome, BaseException):
            raise EngineError(f"{server.shown} was not sent the weights: {outcome}", kind="transfer") from outcome


def refuse_sync(sync: str, weights: WeightFiles) -> None:
    """Raise ConfigError where these weights do not go that way."""
    if sync not in SYNCS:
        raise ConfigError(f"engine.sync={sync}; {', '.join(SYNCS)} are allowed")
    if sync == "nccl" and not torch.cuda.is_available():
        raise ConfigError("engine.sync=nccl, and this process has no CUDA device; engine.sync=gloo needs none")
    if weights.is_adapter and sync != "disk":
        raise ConfigError(
            f"engine.sync={sync}, and an adapter is trained, which vLLM loads from disk: engine.sync=disk"
        )


_DEV_MODE = "a whole model is trained, so start it with VLLM_SERVER_DEV_MODE=1, or train an adapter: model.lora.rank=16"
_RECEIVER = (
    "start it with --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver, or use engine.sync=disk"
)


def _missing(server: Server, version: Version, error: str) -> str:
    if version.is_adapter:
        how = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, on a file system that holds run.dir"
        return f"{server.shown} takes no adapters: {error}; {how}"
    return f"{server.shown} takes no weights: {error}; {_DEV_MODE}"
