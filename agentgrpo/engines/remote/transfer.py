"""Weights to one vLLM server over the network: no file system that trainer and server share.

The first process of the run listens; every worker of the server calls it, and both make a process group of their own,
in which the tensors of the folder are broadcast one after the other. A server is sent to by itself and at any time, so
that one that dies holds up no other and one that comes back is given the weights that it lacks.

    vllm serve MODEL --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver

This module runs in the server's processes too: it needs torch and safetensors, and nothing else of this package.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

BACKENDS = ("gloo", "nccl")
"""gloo: between memories, over TCP. nccl: between devices, of which trainer and server may not share one."""
TENSOR_S = 60.0
"""A tensor that takes longer never comes."""
POLL_S = 0.02
_CALLERS = "callers"


class TransferError(RuntimeError):
    """The weights did not arrive."""


class Sending:
    """One transfer of the weights in `folder` to the `receivers` workers that a server has; server_host: where it is.

    `run` goes in a thread, while the server is told to have its workers call `agentgrpo_receive` with `call`."""

    def __init__(self, folder: Path, *, server_host: str, receivers: int, backend: str, timeout_s: float) -> None:
        """timeout_s: for all workers to have called. Raises TransferError."""
        self._folder, self._timeout_s, self._is_over = folder, timeout_s, threading.Event()
        try:
            host = _host_towards(server_host)
            self._store = _store(host, 0, timeout_s, is_master=True)
        except (OSError, RuntimeError) as e:
            raise TransferError(f"this machine cannot listen for {server_host}: {e}") from e
        self.call: dict[str, Any] = {
            "host": host,
            "port": self._store.port,
            "receivers": receivers,
            "backend": backend,
            "timeout_s": timeout_s,
        }

    def give_up(self) -> None:
        """Has `run` raise, at the latest TENSOR_S later."""
        self._is_over.set()

    def run(self) -> None:
        """Raises TransferError."""
        backend, receivers = self.call["backend"], self.call["receivers"]
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._wait_for_callers(receivers)
        try:
            with _Group(self._store, backend, 0, receivers + 1, self.call["host"], self._timeout_s) as group:
                sent = 0
                for path in sorted(self._folder.glob("*.safetensors")):
                    with safe_open(path, framework="pt", device=str(device)) as file:
                        for name in file.keys():  # noqa: SIM118 - it is no mapping
                            self._refuse_over()
                            tensor = file.get_tensor(name).contiguous()
                            self._announce(sent, [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
                            group.broadcast(tensor)
                            sent += 1
                self._announce(sent, None)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
        except TransferError:
            raise
        except RuntimeError as e:
            raise TransferError(str(e)) from e

    def _announce(self, number: int, tensor: list[Any] | None) -> None:
        """Name, type and shape of what comes next; None = no more."""
        self._store.set(f"tensor {number}", json.dumps(tensor))

    def _wait_for_callers(self, receivers: int) -> None:
        late = time.monotonic() + self._timeout_s
        while (callers := self._store.add(_CALLERS, 0)) < receivers:
            self._refuse_over()
            if time.monotonic() > late:
                raise TransferError(f"{callers} of {receivers} workers called {self.call['host']} in time")
            time.sleep(POLL_S)

    def _refuse_over(self) -> None:
        if self._is_over.is_set():
            raise TransferError("given up")


class WeightReceiver:
    """What a worker of vLLM inherits besides its own class."""

    def agentgrpo_receive(self: Any, host: str, port: int, receivers: int, backend: str, timeout_s: float) -> None:
        """Replace the model's weights by those that are sent by `host`, `port`. Raises what torch raises where the
        sender is lost: the weights are then neither the old ones nor the new."""
        store = _store(host, port, timeout_s, is_master=False)
        rank = store.add(_CALLERS, 1)
        device = self.device if backend == "nccl" else torch.device("cpu")
        with _Group(store, backend, rank, receivers + 1, _host_towards(host), timeout_s) as group:
            self.reload_weights(weights_iterator=_received(group, store, device))


class _Group:
    """A process group beside the default one, which trainer and server each have for themselves. Only when nothing
    refers to it any longer are its connections closed, and does the other side notice."""

    def __init__(self, store: Any, backend: str, rank: int, size: int, host: str, timeout_s: float) -> None:
        timeout = timedelta(seconds=min(timeout_s, TENSOR_S))
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            options._devices, options._timeout = [gloo.create_device(hostname=host)], timeout
            self._group = gloo(store, rank, size, options)

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._group = None

    def broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast(tensor, root=0).wait()


def _store(host: str, port: int, timeout_s: float, *, is_master: bool) -> Any:
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(host, port, is_master=is_master, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]


def _received(group: _Group, store: Any, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for number in itertools.count():
        announced = json.loads(store.get(f"tensor {number}"))
        if announced is None:
            return
        name, dtype, shape = announced
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        group.broadcast(tensor)
        yield name, tensor


def _host_towards(host: str) -> str:
    """This machine's address on the way to `host`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind, protocol)) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
