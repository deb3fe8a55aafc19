"""How a run awaits: phase, stop requests and agreement between its processes, all in one call.

with RunContext(world, "go on with: ...", grace_s=60, at_once=screen.close) as ctx:
    groups = await ctx.do("the rollout of step 7", work)    what is awaited
    ctx.at("the update of step 7")                          what every process computes by itself
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

from agentgrpo.config.hardware import speaks
from agentgrpo.core.errors import Preempted
from agentgrpo.core.interrupts import INTERRUPTED
from agentgrpo.training.process_group import ProcessGroup, agree

T = TypeVar("T")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """Inside the context, SIGTERM, SIGINT and, where nohup has not switched it off, SIGHUP make `unless_stopped` raise
    Preempted. A second signal ends the process at once (exit code 130), and so does the end of `grace_s` seconds (75):
    every file on disk is valid at any instant, so only what came after the last checkpoint is done again. Before such
    an end `at_once` is called, and a line on stderr says why it comes and how to go on.

    It is the `Stop` of a ProcessGroup: `request` comes from another process that got the signal, `fail` where one is
    lost."""

    def __init__(self, how_to_go_on: str, *, grace_s: float, at_once: Callable[[], None]) -> None:
        self._at_once = at_once
        why = f"and its work did not end within {grace_s:g} seconds"
        self._patience = threading.Timer(grace_s, self._end, (Preempted.exit_code, why))
        self._patience.daemon = True
        self._event = asyncio.Event()
        self._how_to_go_on = how_to_go_on
        self._num_signals = 0
        self._error: Exception | None = None
        self.signal_name = ""
        self._asked_at = 0.0

    def refuse_to_go_on(self) -> None:
        """Raise Preempted when a stop was requested."""
        if self._error is not None:
            raise self._error
        if self.signal_name:
            raise Preempted(f"stopped by {self.signal_name}; {self._how_to_go_on}")

    def request(self, signal_name: str) -> None:
        """Stop as if the signal had come to this process."""
        if not self.signal_name:
            self.signal_name, self._asked_at = signal_name, time.monotonic()
        self._wake()

    def fail(self, error: Exception) -> None:
        """From now on `unless_stopped` raises `error`."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def unless_stopped(self, work: Coroutine[Any, Any, T], *, share: float = 0.0) -> T:
        """The result of `work`. When a signal comes first, `work` is cancelled, waited for, and Preempted is raised.
        share: of the grace_s seconds after a signal, within which `work` may still be done."""
        running, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and self._error is None:
                left_s = self._asked_at + share * self._patience.interval - time.monotonic()
                await asyncio.wait((running,), timeout=max(0.0, left_s))
            if not running.done():
                self.refuse_to_go_on()
            return running.result()
        finally:
            running.cancel()
            stopped.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # signal.signal and not the loop's own handlers: an update does not yield to the loop, a person must not wait
        self._num_signals += 1
        if self._num_signals > 1:
            self._end(INTERRUPTED, f"and {signal.Signals(number).name} came again")
        self._patience.start()
        self.request(signal.Signals(number).name)

    def _end(self, code: int, why: str) -> None:
        self._at_once()
        if speaks():
            said = f"stopped by {self.signal_name}, {why}: it ends at once, and what was not saved yet is lost"
            os.write(2, f"agentgrpo: {said}; {self._how_to_go_on}\n".encode())
        os._exit(code)

    def __enter__(self) -> StopRequest:
        self._loop = asyncio.get_running_loop()
        heeded = [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in heeded}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._patience.cancel()


class RunContext:
    """A context manager around the work of a run, inside which signals are heeded; and the only way in which the run
    awaits what its other processes await too. Every process makes the same calls, in the same order.
    how_to_go_on, grace_s, at_once: see StopRequest."""

    def __init__(self, world: ProcessGroup, how_to_go_on: str, *, grace_s: float, at_once: Callable[[], None]) -> None:
        self._world = world
        self._stop = StopRequest(how_to_go_on, grace_s=grace_s, at_once=at_once)

    def __enter__(self) -> RunContext:
        self._stop.__enter__()
        self._world.heed(self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.__exit__(kind, error, trace)

    async def do(self, phase: str, work: Coroutine[Any, Any, T], *, share: float = 0.0) -> T:
        """The result of `work`, known to the others as `phase`; what one process raises, all raise. When one of them is
        asked to stop, `work` is given up on all, waited for, and Preempted is raised. share: of the grace_s seconds
        after the signal, within which `work` may still be done; 1 = it is never given up.

        Inside `work` the event loop may wait for nothing of the other processes but `process_group.share`."""
        self.at(phase)
        value, error = None, None
        try:
            value = await self._stop.unless_stopped(work, share=share)
        except Exception as e:
            error = e

        def outcome() -> T:
            if error is not None:
                raise error
            return cast(T, value)

        return agree(self._world, outcome)

    def at(self, phase: str) -> None:
        """What follows is computed by every process without awaiting, and known to the others as `phase`."""
        self._world.phase = phase

    def stop_if_asked(self, phase: str) -> None:
        """Raise Preempted on all processes when one of them was asked to stop."""
        self.at(phase)
        agree(self._world, self._stop.refuse_to_go_on)
