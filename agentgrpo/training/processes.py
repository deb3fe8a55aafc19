"""Several processes as one ProcessGroup, on torch.distributed, started by `accelerate launch`, torchrun or SLURM.

    values     pickled, over gloo, in a separate group
    tensors    in flat buckets, over gloo on a CPU, over NCCL on GPUs

A process that waits for others keeps watching them and raises ProcessError as soon as one is lost (Heartbeat).
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

from agentgrpo.config.hardware import Launch
from agentgrpo.core.errors import ConfigError, ProcessError, line_of
from agentgrpo.core.untrusted import printable
from agentgrpo.training.process_group import Alone, ProcessGroup, Stop
from agentgrpo.training.sharding import is_sharded

# --- Signs of life: every process reports its state to the others, and notices when one of them is lost.
#
#     beat by a separate thread --store--> all processes' signs --judge--> None, or which one is lost, in which phase
#
# A process is lost if its signs stop (killed, frozen, cut off), if its main thread neither computes nor waits for
# another process (a deadlock), or if all processes wait for one another. Long computations have no time limit.

LEAVE_S = 5.0
"""Seconds that a process has for an orderly exit once another one is lost; then it is killed."""
DONE = "done"


class Sign(NamedTuple):
    """A process's report on itself."""

    beat: int = 0
    joined: int = 0
    """Number of collectives it has completed."""
    waiting: bool = False
    """It is in a collective now."""
    idle_s: float = 0.0
    """Seconds for which its main thread has used no CPU without waiting for other processes."""
    phase: str = ""
    stop: str = ""
    """The signal that asked it to stop."""
    end: str = ""
    """DONE, or the error that it ends with."""


class Judge:
    """Decides which process is lost, from the signs of all processes and their arrival times."""

    def __init__(self, *, rank: int, size: int, timeout_s: float, now: float) -> None:
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self.signs = [Sign()] * size
        self._beat_at = [now] * size
        self._moved_at = now

    def hear(self, signs: Sequence[Sign], now: float) -> None:
        for rank, (old, new) in enumerate(zip(self.signs, signs, strict=True)):
            if new.beat != old.beat:
                self._beat_at[rank] = now
            if (new.joined, new.waiting, new.end) != (old.joined, old.waiting, old.end):
                self._moved_at = now
        self.signs = list(signs)

    def verdict(self, now: float) -> str | None:
        """Return why this process cannot continue; None if it can."""
        for rank, sign in enumerate(self.signs):
            if rank != self._rank and sign.end not in ("", DONE):
                return f"{self._name(rank)} and has ended: {sign.end}"
        if silent := self.silent(now, self._timeout_s):
            return f"{silent} and gives no sign of life for {self._timeout_s:g} s"
        for rank, sign in enumerate(self.signs):
            if sign.idle_s > self._timeout_s and not sign.end:
                return f"{self._name(rank)} and has come to a standstill for {self._timeout_s:g} s"
        if now - self._moved_at > self._timeout_s and all(s.waiting or s.end for s in self.signs):
            names = "; ".join(self._name(rank) for rank in range(self._size))
            return f"all processes wait for one another: {names}"
        return None

    def silent(self, now: float, seconds: float) -> str | None:
        """Return the first other process that has sent no sign for `seconds`."""
        for rank, heard in enumerate(self._beat_at):
            if rank != self._rank and now - heard > seconds and self.signs[rank].end != DONE:
                return self._name(rank)
        return None

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {self._size} was last at: {self.signs[rank].phase or 'its start'}"


class Store(Protocol):
    """The methods of a torch.distributed store that are used here."""

    def set(self, key: str, value: str) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class Heartbeat:
    """Sends signs of life until `close`."""

    def __init__(self, store: Store, *, rank: int, size: int, timeout_s: float) -> None:
        self.phase = ""
        self.stacks: Path | None = None
        """Directory for the stack traces of this process if another one is lost."""
        self.error: ProcessError | None = None
        """Set when a process is lost."""
        self.period_s = min(1.0, timeout_s / 10)
        self._store, self._rank, self._size = store, rank, size
        self._keys = [f"agentgrpo/{rank}" for rank in range(size)]
        self._judge = Judge(rank=rank, size=size, timeout_s=timeout_s, now=time.monotonic())
        self._beats = self._joined = 0
        self._waiting, self._end = False, ""
        self._stop: Stop | None = None
        self._main = threading.main_thread().ident or 0
        self._cpu_s, self._active_at = -1.0, time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentgrpo-heartbeat", daemon=True)
        self._say()

    def start(self) -> None:
        """Call once every process has created its heartbeat; otherwise a reader would wait for a sign that does not
        exist."""
        self._thread.start()

    def heed(self, stop: Stop) -> None:
        self._stop = stop

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark this process as in a collective inside the block. Raises ProcessError if another process is already
        lost."""
        self.check()
        self._waiting = True
        try:
            yield
        finally:
            self._active_at = time.monotonic()
            self._joined, self._waiting = self._joined + 1, False

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def blame(self, failure: Exception) -> ProcessError:
        """Return the error for a failed collective; it names the lost process as soon as three beats have shown which
        one."""
        reason = f"a collective failed: {failure}"
        for _ in range(5):
            if self.error is not None:
                return self.error
            if silent := self._judge.silent(time.monotonic(), 2.5 * self.period_s):
                reason = f"{silent} and is gone"
                break
            time.sleep(self.period_s)
        return self.lose(reason)

    def end(self, reason: str) -> None:
        """Tell the others how this process ends: DONE, or its error."""
        self._end = reason
        with suppress(Exception):  # the store may have ended with its process
            self._say()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(2 * self.period_s)

    def _run(self) -> None:
        while not self._closed.wait(self.period_s):
            try:
                self._beat()
            except Exception as e:
                if not self._closed.is_set():
                    self.lose(f"the launcher, or rank 0 that keeps the processes' addresses, is gone ({e})")
            if self.error is not None and not self._closed.wait(LEAVE_S):
                print(f"agentgrpo: {printable(str(self.error))}", file=sys.stderr, flush=True)
                os._exit(ProcessError.exit_code)

    def _beat(self) -> None:
        self._say()
        signs = [Sign(*json.loads(text)) for text in self._store.multi_get(self._keys)]
        now = time.monotonic()
        self._judge.hear(signs, now)
        for sign in signs:
            if sign.stop and self._stop is not None and not self._stop.signal_name:
                self._stop.request(sign.stop)
        if reason := self._judge.verdict(now):
            self.lose(reason)

    def _say(self) -> None:
        self._beats += 1
        sign = Sign(
            beat=self._beats,
            joined=self._joined,
            waiting=self._waiting,
            idle_s=0.0 if self._waiting else self._idle_s(),
            phase=self.phase,
            stop=self._stop.signal_name if self._stop is not None else "",
            end=self._end,
        )
        self._store.set(self._keys[self._rank], json.dumps(sign))

    def _idle_s(self) -> float:
        now = time.monotonic()
        used = _cpu_seconds(self._main)
        if used is None or used != self._cpu_s:
            self._cpu_s, self._active_at = used or 0.0, now
        return now - self._active_at

    def lose(self, reason: str) -> ProcessError:
        """End the run: this process must exit within LEAVE_S."""
        if self.error is None:
            if self.stacks is not None:
                with suppress(OSError), (self.stacks / f"stacks-rank-{self._rank}.txt").open("w") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
            self.error = ProcessError(f"{reason}; the run ends on all processes and can be resumed")
            if self._stop is not None:
                self._stop.fail(self.error)
        return self.error


def _cpu_seconds(thread: int) -> float | None:
    """Return the CPU time used by a thread of this process; None if the system does not report it."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    return None if clock_of is None else time.clock_gettime(clock_of(thread))


T = TypeVar("T")
BUCKET_BYTES = 2**26
"""Maximum size of the tensors that are summed in one call."""
PATIENCE = timedelta(days=30)
"""Timeout of a collective; lost processes are detected by the heartbeat instead."""
LAST_RESORT = timedelta(minutes=10)
"""Timeout of a collective inside a training step, where no process waits for another one's rollout."""


@contextmanager
def processes(launch: Launch, *, device: str, timeout_s: float) -> Iterator[ProcessGroup]:
    """Provide all processes of the launch as a ProcessGroup inside the block; a single process is Alone. timeout_s: a
    process without a sign of life for this long counts as lost. An exception that leaves the block is reported to the
    other processes and ends them. A process whose peer is lost raises ProcessError here, and should then exit without
    waiting for anything."""
    if launch.size == 1:
        yield Alone()
        return
    world = Processes(launch, device=device, timeout_s=timeout_s)
    try:
        yield world
    except BaseException as e:
        error = world.explain(e)
        world.leave(line_of(error))
        raise error from (None if error is e else e)
    world.leave(DONE)


class Processes:
    """Created by every process of the launch at about the same time. Raises ConfigError for a device that is not
    available."""

    def __init__(self, launch: Launch, *, device: str, timeout_s: float) -> None:
        if device not in ("cpu", "cuda"):
            raise ConfigError(
                f"hardware.device={device} of {launch.size} processes; allowed are cpu and cuda, with "
                "one GPU per process"
            )
        if device == "cuda" and torch.cuda.device_count() <= launch.local_rank:
            raise ConfigError(
                f"hardware.device=cuda: torch finds {torch.cuda.device_count()} GPUs here, and process "
                f"{launch.local_rank} of this machine needs its own; start fewer, or give hardware.device=cpu"
            )
        on_cpu = device == "cpu"
        os.environ |= launch.variables()
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # keeps accelerate from setting compute threads
        PartialState(
            cpu=on_cpu,
            backend="gloo" if on_cpu else "cpu:gloo,cuda:nccl",
            timeout=max(LAST_RESORT, timedelta(seconds=2 * timeout_s)),
        )
        self.rank, self.size = launch.rank, launch.size
        self._values: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._exchanged: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._tensors: Any = self._values if on_cpu else None  # None = the default group, over NCCL
        self._heartbeat = Heartbeat(_own_store(timeout_s), rank=self.rank, size=self.size, timeout_s=timeout_s)
        dist.barrier(self._values)
        self._heartbeat.start()

    @property
    def phase(self) -> str:
        return self._heartbeat.phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._heartbeat.phase = phase

    def heed(self, stop: Stop) -> None:
        self._heartbeat.heed(stop)
        _tick(asyncio.get_running_loop())

    def keep_stacks(self, directory: Path) -> None:
        self._heartbeat.stacks = directory

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
            raise self._heartbeat.lose(f"the processes are out of step, {ranks}")
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
        """Return the phase and value of every process; yields the operations to wait for."""
        data = torch.frombuffer(bytearray(pickle.dumps((self.phase, value))), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        yield dist.all_gather(sizes, torch.tensor([len(data)]), group=group, async_op=True)
        longest = max(int(n) for n in sizes)
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        yield dist.all_gather(rows, padded, group=group, async_op=True)
        texts = [row[: int(n)].numpy().tobytes() for row, n in zip(rows, sizes, strict=True)]
        return [(self.phase, value) if r == self.rank else pickle.loads(t) for r, t in enumerate(texts)]  # our own data

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for bucket in _buckets([t for t in tensors if not is_sharded(t)]):
            flat = torch.cat([t.flatten() for t in bucket])
            self._join(dist.all_reduce(flat, group=self._tensors, async_op=True))
            parts = torch.split(flat, [t.numel() for t in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def explain(self, error: BaseException) -> BaseException:
        """Return the error itself or, for a failed collective of torch, an error that names the lost process."""
        if isinstance(error, RuntimeError) and re.search("gloo|nccl", str(error), re.IGNORECASE):
            return self._heartbeat.blame(error)
        return error

    def leave(self, reason: str) -> None:
        """Tell the others and, once all are done, close the connections. With a reason other than DONE it waits for no
        process, because the others may be in any state."""
        self._heartbeat.end(reason)
        if reason == DONE:
            self._join(dist.barrier(self._values, async_op=True))
        if self._heartbeat.error is None:  # else closing may hang, and the heartbeat must force the exit
            self._heartbeat.close()
            dist.destroy_process_group()

    def _join(self, work: Any) -> None:
        """Wait for a collective while watching the other processes. Raises ProcessError."""
        pause = 2e-5
        with self._heartbeat.waiting():
            while not self._has_come(work):
                time.sleep(pause)
                pause = min(2 * pause, 5e-3)

    def _has_come(self, work: Any) -> bool:
        """Return whether the collective is complete. Raises ProcessError if it never will be."""
        self._heartbeat.check()
        try:
            if not work.is_completed():
                return False
            work.wait()
        except RuntimeError as e:
            raise self._heartbeat.blame(e) from e
        return True


def _tick(loop: asyncio.AbstractEventLoop) -> None:
    """Wake an idle event loop every second, so that it does not look like a deadlock."""
    loop.call_later(1.0, _tick, loop)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group neighbouring tensors of one dtype and device, up to BUCKET_BYTES (or a single larger tensor) per bucket."""
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
    """Return a separate connection for the heartbeat to the store through which the processes found each other."""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    own = store.clone()
    own.set_timeout(timedelta(seconds=timeout_s))
    return own
