"""Several processes for tests, forked from a server that has imported everything, over gloo on this machine."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch

from agentgrpo.config.hardware import Launch
from agentgrpo.training.processes import processes

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (
    *("tests.training.several", "tests.training.test_trainer"),
    *("agentgrpo.training.processes", "agentgrpo.cli.verbs"),
)
CONTEXT.set_forkserver_preload(list(PRELOADED))


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: nobody else gets it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _run(launch: Launch, timeout_s: float, queue: SimpleQueue[bytes], work: Callable[..., Any], args: Any) -> None:
    faulthandler.enable()  # a process that crashes says where
    torch.set_num_threads(1)
    code = 0
    try:
        with processes(launch, device="cpu", timeout_s=timeout_s) as world:
            found = work(world, *args)
    except Exception as e:
        found, code = e, getattr(e, "exit_code", 1)
    queue.put(pickle.dumps((launch.rank, found)))  # by value: tensors would be left behind in this process's memory
    os._exit(code)  # as verbs does: nothing waits for a collective that may never end


@contextmanager
def started(
    size: int, work: Callable[..., Any], *args: Any, timeout_s: float = 20.0
) -> Iterator[tuple[list[BaseProcess], SimpleQueue[bytes]]]:
    """`work(world, *args)` on `size` processes; (them, the queue of (rank, result or error), pickled)."""
    queue: SimpleQueue[bytes] = CONTEXT.SimpleQueue()
    port = free_port()
    launches = [Launch(rank, size, rank, "127.0.0.1", port) for rank in range(size)]
    running = [CONTEXT.Process(target=_run, args=(launch, timeout_s, queue, work, args)) for launch in launches]
    for process in running:
        process.start()
    try:
        yield running, queue
    finally:
        for process in running:
            process.kill()
            process.join()


def on(size: int, work: Callable[..., Any], *args: Any, timeout_s: float = 20.0) -> list[Any]:
    """What `work(world, *args)` returns or raises on each of `size` processes, by rank. A process that ends without a
    word fails the test."""
    found: dict[int, Any] = {}
    with started(size, work, *args, timeout_s=timeout_s) as (running, queue):
        while len(found) < size:
            codes = [process.exitcode for process in running]  # before the queue: who says something does so first
            while not queue.empty():
                found.update([pickle.loads(queue.get())])
            silent = [rank for rank, code in enumerate(codes) if code is not None and rank not in found]
            assert not silent, f"ranks {silent} of {size} ended without a word: exit codes {codes}"
            time.sleep(0.005)
    return [found[rank] for rank in range(size)]
