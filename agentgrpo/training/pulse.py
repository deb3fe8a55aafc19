"""Signs of life: every process tells the others what it is at, and notices when one of them is lost.

    beat by a thread of its own --store--> everybody's signs --judge--> None, or who is lost, and in which phase

A process is lost where its signs stay away (killed, frozen, cut off), where its main thread neither computes nor waits
for another process (a deadlock), and where all wait for one another. Working long is no reason: nobody is rushed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from agentgrpo.errors import ProcessError
from agentgrpo.training.world import Stop

LEAVE_S = 5.0
"""Seconds that a process has to leave in good order once another one is lost; then it is ended."""
DONE = "done"


class Sign(NamedTuple):
    """What a process says of itself."""

    beat: int = 0
    joined: int = 0
    """Collectives it has gone through."""
    waiting: bool = False
    """It is in one now."""
    idle_s: float = 0.0
    """How long its main thread has used no CPU without waiting for the others."""
    phase: str = ""
    stop: str = ""
    """The signal that asked it to stop."""
    end: str = ""
    """DONE, or the error that it ends with."""


class Judge:
    """Who is lost, from everybody's signs and the times at which they came in."""

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
        """Why this process cannot go on; None = it can."""
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
        """The first of the others that has not been heard for `seconds`."""
        for rank, heard in enumerate(self._beat_at):
            if rank != self._rank and now - heard > seconds and self.signs[rank].end != DONE:
                return self._name(rank)
        return None

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {self._size} was last at: {self.signs[rank].phase or 'its start'}"


class Store(Protocol):
    """What a torch.distributed store can do."""

    def set(self, key: str, value: str) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class Pulse:
    """Beats until `close`."""

    def __init__(self, store: Store, *, rank: int, size: int, timeout_s: float) -> None:
        self.phase = ""
        self.stacks: Path | None = None
        """Directory for the stacks of this process where one is lost."""
        self.error: ProcessError | None = None
        """Set where a process is lost."""
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
        self._thread = threading.Thread(target=self._run, name="agentgrpo-pulse", daemon=True)
        self._say()

    def start(self) -> None:
        """Once every process has made its own, or a reader would wait for a sign that is not there."""
        self._thread.start()

    def heed(self, stop: Stop) -> None:
        self._stop = stop

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This process is in a collective inside the block. Raises ProcessError where another is lost already."""
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
        """The error for a collective that failed: it says who is gone as soon as three beats have shown it."""
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
        with suppress(Exception):  # the store may be gone with the process that kept it
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
                print(f"agentgrpo: {self.error}", file=sys.stderr, flush=True)
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
        """The run is at its end: this process must leave within LEAVE_S."""
        if self.error is None:
            if self.stacks is not None:
                with suppress(OSError), (self.stacks / f"stacks-rank-{self._rank}.txt").open("w") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
            self.error = ProcessError(f"{reason}; the run ends on all processes and can be resumed")
            if self._stop is not None:
                self._stop.fail(self.error)
        return self.error


def _cpu_seconds(thread: int) -> float | None:
    """CPU time that a thread of this process has used; None where the system does not tell."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    return None if clock_of is None else time.clock_gettime(clock_of(thread))
