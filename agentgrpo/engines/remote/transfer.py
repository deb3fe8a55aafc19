"""Send weights to one vLLM server over the network, without a shared file system.

The first process of the run listens. Every worker of the server connects to it, and both sides create a separate
process group, in which the tensors of the folder are broadcast one after another. Other messages go through a store:

    callers        number of workers that have connected
    begin          all workers have connected: create the group
    tensor N       name, type and shape of the Nth tensor; or that there are no more, or that the sender has failed
    worker K       the error of worker K; empty = it has received all tensors

Each server is served separately and at any time, so that a failed server delays no other, and a returning one receives
the weights that it lacks. Workers never raise: vLLM would leave the replies of the other workers unread, and take them
for replies to the next call.

    vllm serve MODEL --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver

This module also runs in the server's processes: it needs torch and safetensors, but nothing else of this package.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

BACKENDS = ("gloo", "nccl")
"""gloo: from main memory to main memory, over TCP. nccl: from device to device; trainer and server may not share
one."""
PATIENCE_S = 60.0
"""Seconds for all workers to connect, and for every single tensor. A worker may wait this long after another one has
failed, because a connection that ends just before data arrives goes unnoticed."""
_GLOO_CONNECTS = 5
"""gloo waits this many times its timeout for a connection: with PATIENCE_S, a worker whose sender fails while
connecting would be held up for five minutes."""
CONNECT_S = 10.0
"""Seconds for a worker to reach the sender, which listens before any worker is told to connect; torch tries twice. A
worker that comes too late finds no sender."""
FAREWELL_S = 2.0
"""Seconds for workers to report their errors."""
POLL_S = 0.02
_CPU = torch.device("cpu")
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"


class TransferError(RuntimeError):
    """The weights did not arrive."""


class GivenUp(TransferError):
    """The transfer was abandoned."""


class Sending:
    """One transfer of the weights in `folder` to the `receivers` workers of a server.

    `run` runs in a thread, while the server is told to have its workers call `agentgrpo_receive` with `call`."""

    def __init__(
        self,
        folder: Path,
        *,
        server_host: str,
        receivers: int,
        backend: str,
        timeout_s: float,
        device: torch.device = _CPU,
        host: str | None = None,
    ) -> None:
        """server_host: host of the server. host: the address of this machine that its workers connect to; None = the
        one on the route to the server. device: device from which weights are sent with nccl. timeout_s: for the workers
        to install the weights once they have arrived. Raises TransferError."""
        self._folder, self._timeout_s, self._is_over = folder, timeout_s, threading.Event()
        self._device = device if backend == "nccl" else _CPU
        try:
            host = host or _host_towards(server_host)
            self._store: Any = _store(host, 0, is_master=True)
        except (OSError, RuntimeError) as e:
            raise TransferError(f"this machine cannot listen at {host or server_host}: {e}") from e
        self.call = {"host": host, "port": self._store.port, "receivers": receivers, "backend": backend}

    def give_up(self) -> None:
        """Make `run` raise GivenUp within PATIENCE_S."""
        self._is_over.set()

    def run(self) -> None:
        """Send the weights. Raises TransferError."""
        host, receivers = self.call["host"], self.call["receivers"]
        sent, failure = 0, None
        try:
            self._wait_for_callers(receivers)
            self._store.set("begin", "")
            with _Group(self._store, self.call["backend"], 0, receivers + 1, host) as group:
                for tensor in self._announced():
                    group.broadcast(tensor)
                    sent += 1
                _finish(self._device)
                if not self._wait(lambda: self._have_reported(receivers), self._timeout_s):
                    raise TransferError(f"its workers have not put the weights in place within {self._timeout_s:g} s")
        except Exception as e:  # also errors of files or device, because workers wait for the next message
            failure = e
            for number in (sent, sent + 1):
                self._store.set(_tensor(number), json.dumps({"lost": str(e)}))
        try:
            self._refuse_failed(failure)
        finally:
            self._store = None  # closes it, also for workers that wait for a missing worker

    def _announced(self) -> Iterator[Tensor]:
        number = itertools.count()
        for path in sorted(self._folder.glob("*.safetensors")):
            with safe_open(path, framework="pt", device=str(self._device)) as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._refuse_over()
                    tensor = file.get_tensor(name).contiguous()
                    about = {"name": name, "type": str(tensor.dtype).removeprefix("torch."), "shape": [*tensor.shape]}
                    self._store.set(_tensor(next(number)), json.dumps(about))
                    yield tensor
        self._store.set(_tensor(next(number)), json.dumps({"end": True}))

    def _wait_for_callers(self, receivers: int) -> None:
        if not self._wait(lambda: self._callers >= receivers, PATIENCE_S):
            raise TransferError(
                f"{self._callers} of its {receivers} workers have called {self.call['host']} port {self.call['port']} "
                f"within {PATIENCE_S:g} s; is the way there open (engine.sync_host)?"
            )

    def _refuse_failed(self, failure: Exception | None) -> None:
        """Raise TransferError with the errors of the workers and of the sender itself."""
        late = time.monotonic() + FAREWELL_S
        while not self._have_reported(self._callers) and time.monotonic() < late:
            time.sleep(POLL_S)
        reasons = [self._store.get(name).decode() for name in _workers(self._callers) if self._store.check([name])]
        if isinstance(failure, GivenUp):
            raise failure
        if reasons := [text for text in (*reasons, str(failure or "")) if text]:
            raise TransferError("; ".join(reasons)) from failure

    @property
    def _callers(self) -> int:
        return int(self._store.add("callers", 0))

    def _have_reported(self, workers: int) -> bool:
        return bool(self._store.check(_workers(workers))) if workers else True

    def _wait(self, condition: Callable[[], bool], patience_s: float) -> bool:
        late = time.monotonic() + patience_s
        while not (found := condition()) and time.monotonic() < late:
            self._refuse_over()
            time.sleep(POLL_S)
        return found

    def _refuse_over(self) -> None:
        if self._is_over.is_set():
            raise GivenUp("given up")


class WeightReceiver:
    """A mixin for the worker class of vLLM."""

    def agentgrpo_receive(self: Any, host: str, port: int, receivers: int, backend: str) -> None:
        """Replace the model's weights by those sent from `host`, `port`, and report the outcome to the sender. After a
        failure the weights are neither the old nor the new ones. Never raises."""
        try:
            store = _store(host, port, is_master=False)
            rank = store.add("callers", 1)
        except RuntimeError:  # the sender will notice that this worker is missing
            return
        device = self.device if backend == "nccl" else _CPU
        try:
            store.get("begin")
            with _Group(store, backend, rank, receivers + 1, _host_towards(host)) as group:
                self.reload_weights(weights_iterator=_received(group, store, device))
                _finish(device)
            failure = ""
        except Exception as e:
            failure = f"{type(e).__name__}: {e}"
        _report(store, rank, failure)


class _Group:
    """A process group beside the default group of trainer or server. Its connections are closed, and the other side
    notices, only when the last reference to it is gone."""

    def __init__(self, store: Any, backend: str, rank: int, size: int, host: str) -> None:
        timeout = timedelta(seconds=PATIENCE_S)
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            blocking = os.environ.get(_BLOCKING)
            os.environ[_BLOCKING] = "1"  # a lost peer raises in `wait` instead of ending this process
            try:
                self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
            finally:
                os.environ.pop(_BLOCKING)
                if blocking is not None:
                    os.environ[_BLOCKING] = blocking
        else:
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            options._devices, options._timeout = [gloo.create_device(hostname=host)], timeout / _GLOO_CONNECTS
            self._group = gloo(store, rank, size, options)

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._group = None

    def broadcast(self, tensor: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, timedelta(seconds=PATIENCE_S)
        self._group.broadcast([tensor], options).wait()


def _received(group: _Group, store: Any, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for number in itertools.count():
        about = json.loads(store.get(_tensor(number)))
        if "lost" in about:
            raise TransferError(f"the sender failed: {about['lost']}")
        if "end" in about:
            return
        tensor = torch.empty(about["shape"], dtype=getattr(torch, about["type"]), device=device)
        group.broadcast(tensor)
        yield about["name"], tensor


def _report(store: Any, rank: int, failure: str) -> None:
    try:
        store.set(_worker(rank), failure)
    except RuntimeError:  # the sender is gone, so no one needs the report
        return


def _store(host: str, port: int, *, is_master: bool) -> Any:
    timeout = timedelta(seconds=CONNECT_S)
    store = dist.TCPStore(host, port, is_master=is_master, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=PATIENCE_S))
    return store


def _tensor(number: int) -> str:
    return f"tensor {number}"


def _workers(count: int) -> list[str]:
    return [_worker(rank) for rank in range(1, count + 1)]


def _worker(rank: int) -> str:
    return f"worker {rank}"


def _finish(device: torch.device) -> None:
    """Wait until the transfers to or from `device` are complete."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _host_towards(host: str) -> str:
    """Return this machine's address on the route to `host`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind, protocol)) as probe:
        probe.connect(address)  # a datagram socket sends nothing on connect
        return str(probe.getsockname()[0])
