"""Several processes as one World, on torch.distributed, started by `accelerate launch`, torchrun or SLURM.

    values     pickled, over gloo, in a group of their own
    tensors    in flat buckets, over gloo on a CPU, over NCCL on GPUs

Who waits for the others looks about while it does: it raises ProcessError as soon as one of them is lost, see pulse.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

from agentgrpo.errors import ConfigError
from agentgrpo.hardware import Launch
from agentgrpo.training.pulse import DONE, Pulse
from agentgrpo.training.sharding import is_sharded
from agentgrpo.training.world import Alone, Stop, World

T = TypeVar("T")
BUCKET_BYTES = 2**26
"""Of tensors that are added up in one call."""
PATIENCE = timedelta(days=30)
"""Of a collective by itself: who is lost is for the pulse to say."""
LAST_RESORT = timedelta(minutes=10)
"""The same inside of a training step, where no process waits for a longer one's rollout."""


@contextmanager
def processes(launch: Launch, *, device: str, timeout_s: float) -> Iterator[World]:
    """All processes of the launch as a World, inside the block; one process is Alone. timeout_s: without a sign of life
    for so long a process counts as lost. What leaves the block is told to the others, whom it ends; a process that is
    left by another raises ProcessError here, and should then end without waiting for anything."""
    if launch.size == 1:
        yield Alone()
        return
    world = Processes(launch, device=device, timeout_s=timeout_s)
    try:
        yield world
    except BaseException as e:
        error = world.explain(e)
        world.leave(f"{type(error).__name__}: {error}")
        raise error from (None if error is e else e)
    world.leave(DONE)


class Processes:
    """Made by every process of the launch at about the same time. Raises ConfigError for a device it cannot have."""

    def __init__(self, launch: Launch, *, device: str, timeout_s: float) -> None:
        if device not in ("cpu", "cuda"):
            raise ConfigError(
                f"hardware.device={device} of {launch.size} processes; allowed are cpu and cuda, of which "
                "each takes its own"
            )
        if device == "cuda" and torch.cuda.device_count() <= launch.local_rank:
            raise ConfigError(
                f"hardware.device=cuda: torch finds {torch.cuda.device_count()} GPUs here, and process "
                f"{launch.local_rank} of this machine needs its own; start fewer, or give hardware.device=cpu"
            )
        on_cpu = device == "cpu"
        os.environ |= launch.variables()
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # or accelerate sets compute threads; hardware.threads does
        PartialState(
            cpu=on_cpu,
            backend="gloo" if on_cpu else "cpu:gloo,cuda:nccl",
            timeout=max(LAST_RESORT, timedelta(seconds=2 * timeout_s)),
        )
        self.rank, self.size = launch.rank, launch.size
        self._values: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._exchanged: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._tensors: Any = self._values if on_cpu else None  # None = all, over NCCL
        self._pulse = Pulse(_own_store(timeout_s), rank=self.rank, size=self.size, timeout_s=timeout_s)
        dist.barrier(self._values)
        self._pulse.start()

    @property
    def phase(self) -> str:
        return self._pulse.phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._pulse.phase = phase

    def heed(self, stop: Stop) -> None:
        self._pulse.heed(stop)
        _tick(asyncio.get_running_loop())

    def keep_stacks(self, directory: Path) -> None:
        self._pulse.stacks = directory

    def gather(self, value: T) -> list[T]:
        running = self._all(value, self._values)
        while True:
            try:
                self._join(next(running))
            except StopIteration as done:
                found: list[tuple[str, T]] = done.value
                break
        if len({phase for phase, _ in found}) > 1:
            ranks = ", ".join(f"rank {rank} at: {phase}" for rank, (phase, _) in enumerate(found))
            raise self._pulse.lose(f"the processes are out of step, {ranks}")
        return [value for _, value in found]

    async def exchange(self, value: T) -> list[T]:
        running = self._all(value, self._exchanged)
        pause = 1e-3
        while True:
            try:
                work = next(running)
            except StopIteration as done:
                found: list[tuple[str, T]] = done.value
                return [value for _, value in found]
            while not self._has_come(work):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.02)

    def _all(self, value: T, group: Any) -> Generator[Any, None, list[tuple[str, T]]]:
        """Everybody's phase and value; yields what is to be waited for."""
        data = torch.frombuffer(bytearray(pickle.dumps((self.phase, value))), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        yield dist.all_gather(sizes, torch.tensor([len(data)]), group=group, async_op=True)
        longest = max(int(n) for n in sizes)
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        yield dist.all_gather(rows, padded, group=group, async_op=True)
        texts = [row[: int(n)].numpy().tobytes() for row, n in zip(rows, sizes, strict=True)]
        return [(self.phase, value) if r == self.rank else pickle.loads(t) for r, t in enumerate(texts)]  # our own kind

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for bucket in _buckets([t for t in tensors if not is_sharded(t)]):
            flat = torch.cat([t.flatten() for t in bucket])
            self._join(dist.all_reduce(flat, group=self._tensors, async_op=True))
            parts = torch.split(flat, [t.numel() for t in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def explain(self, error: BaseException) -> BaseException:
        """The error itself, or for a collective of torch's own that failed, who is lost."""
        if isinstance(error, RuntimeError) and re.search("gloo|nccl", str(error), re.IGNORECASE):
            return self._pulse.blame(error)
        return error

    def leave(self, reason: str) -> None:
        """Tell the others, and once all are done, close the connections. With a reason other than DONE nobody is waited
        for: the others may be anywhere."""
        self._pulse.end(reason)
        if reason == DONE:
            self._join(dist.barrier(self._values, async_op=True))
        if self._pulse.error is None:  # or connections might never close, and the pulse must see to the end
            self._pulse.close()
            dist.destroy_process_group()

    def _join(self, work: Any) -> None:
        """Wait for a collective, looking about. Raises ProcessError."""
        pause = 2e-5
        with self._pulse.waiting():
            while not self._has_come(work):
                time.sleep(pause)
                pause = min(2 * pause, 5e-3)

    def _has_come(self, work: Any) -> bool:
        """Raises ProcessError where it never will."""
        self._pulse.check()
        try:
            if not work.is_completed():
                return False
            work.wait()
        except RuntimeError as e:
            raise self._pulse.blame(e) from e
        return True


def _tick(loop: asyncio.AbstractEventLoop) -> None:
    """An event loop that has nothing to do must not look as if it stood still."""
    loop.call_later(1.0, _tick, loop)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype and device, up to BUCKET_BYTES (or one tensor) together."""
    bucket: list[Tensor] = []
    room = 0
    for t in tensors:
        if bucket and (t.nbytes > room or (t.dtype, t.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        room = (room if bucket else BUCKET_BYTES) - t.nbytes
        bucket.append(t)
    if bucket:
        yield bucket


def _own_store(timeout_s: float) -> Any:
    """A connection for the pulse alone to the store through which the processes found each other."""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    own = store.clone()
    own.set_timeout(timedelta(seconds=timeout_s))
    return own
