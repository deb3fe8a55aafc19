"""Weights to one vLLM server over the network: no file system that trainer and server share.

The first process of the run listens; every worker of the server calls it, and both make a process group of their own,
in which the tensors of the folder are broadcast one after the other. What is said beside that goes through a store:

    callers        how many workers have called
    begin          all have: connect
    tensor N       name, type and shape of the Nth tensor; or that there are no more, or that the sender has failed
    worker K       what worker K has failed with; empty = it has all of them

A server is sent to by itself and at any time, so that one that dies holds up no other and one that comes back is given
the weights that it lacks. Workers never raise: vLLM would leave the others' replies unread, and take them for those of
the next call.

    vllm serve MODEL --worker-extension-cls agentgrpo.engines.remote.transfer.WeightReceiver

This module runs in the server's processes too: it needs torch and safetensors, and nothing else of this package.
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
"""gloo: between memories, over TCP. nccl: between devices, of which trainer and server may not share one."""
PATIENCE_S = 60.0
"""For all workers to call, and for every single tensor. So long a worker may wait when another one has failed: a
connection that ends just before something is to come through it goes unnoticed."""
_GLOO_CONNECTS = 5
"""Times its timeout is what gloo waits for a connection: with PATIENCE_S a worker whose sender dies while they connect
would be held up for five minutes."""
CONNECT_S = 10.0
"""For a worker to reach the sender, who listens before any is told to call; torch tries twice. A worker that comes too
late finds nobody."""
FAREWELL_S = 2.0
"""For workers to say what they have failed with."""
POLL_S = 0.02
_CPU = torch.device("cpu")
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"


class TransferError(RuntimeError):
    """The weights did not arrive."""


class GivenUp(TransferError):
    """Nobody waits for them any more."""


class Sending:
    """One transfer of the weights in `folder` to the `receivers` workers that a server has.

    `run` goes in a thread, while the server is told to have its workers call `agentgrpo_receive` with `call`."""

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
        """server_host: where the server is. host: the address of this machine that its workers call; None = the one on
        the way to it. device: that the weights are sent from, with nccl. timeout_s: for the workers to have put the
        weights in place once they are there. Raises TransferError."""
        self._folder, self._timeout_s, self._is_over = folder, timeout_s, threading.Event()
        self._device = device if backend == "nccl" else _CPU
        try:
            host = host or _host_towards(server_host)
            self._store: Any = _store(host, 0, is_master=True)
        except (OSError, RuntimeError) as e:
            raise TransferError(f"this machine cannot listen at {host or server_host}: {e}") from e
        self.call = {"host": host, "port": self._store.port, "receivers": receivers, "backend": backend}

    def give_up(self) -> None:
        """Has `run` raise GivenUp, at the latest PATIENCE_S later."""
        self._is_over.set()

    def run(self) -> None:
        """Raises TransferError."""
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
        except Exception as e:  # also one of the files or the device: workers wait for what comes next
            failure = e
            for number in (sent, sent + 1):
                self._store.set(_tensor(number), json.dumps({"lost": str(e)}))
        try:
            self._refuse_failed(failure)
        finally:
            self._store = None  # closed, also for a worker that waits for one that never called

    def _announced(self) -> Iterator[Tensor]:
        number = itertools.count()
        for path in sorted(self._folder.glob("*.safetensors")):
            with safe_open(path, framework="pt", device=str(self._device)) as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
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
        """Raise TransferError with what the workers say, and the sender itself."""
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
    """What a worker of vLLM inherits besides its own class."""

    def agentgrpo_receive(self: Any, host: str, port: int, receivers: int, backend: str) -> None:
        """Replace the model's weights by those that are sent by `host`, `port`, who is told how it went. Where it
        failed the weights are neither the old ones nor the new. Never raises."""
        try:
            store = _store(host, port, is_master=False)
            rank = store.add("callers", 1)
        except RuntimeError:  # the sender will miss it
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
    """A process group beside the default one, which trainer and server each have for themselves. Only when nothing
    refers to it any longer are its connections closed, and does the other side notice."""

    def __init__(self, store: Any, backend: str, rank: int, size: int, host: str) -> None:
        timeout = timedelta(seconds=PATIENCE_S)
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            blocking = os.environ.get(_BLOCKING)
            os.environ[_BLOCKING] = "1"  # a lost peer is an error of `wait`, and not the end of this process
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
    except RuntimeError:  # the sender is gone, and with it whoever would want to know
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
    """Until what was sent to or by `device` is there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _host_towards(host: str) -> str:
    """This machine's address on the way to `host`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind, protocol)) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
