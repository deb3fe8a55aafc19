"""How a run awaits: phase, stop requests and agreement between its processes, all in one call.

with RunContext(world, "go on with: ...", grace_s=60, at_once=screen.close) as ctx:
    groups = await ctx.do("the rollout of step 7", work)    awaited work
    ctx.at("the update of step 7")                          work that every process computes by itself
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
    """A context manager inside which SIGTERM, SIGINT and (unless nohup ignores it) SIGHUP make `unless_stopped` raise
    Preempted. The process ends at once after a second signal (exit code 130) or `grace_s` seconds after the first (75).
    Every file on disk is valid at any instant, so only the work since the last checkpoint is repeated. Before ending at
    once it calls `at_once` and prints the reason and how to go on to stderr.

    It implements the `Stop` of a ProcessGroup: `request` passes on a signal that another process received, `fail`
    reports a lost process."""

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
        """Raise Preempted if a stop was requested."""
        if self._error is not None:
            raise self._error
        if self.signal_name:
            raise Preempted(f"stopped by {self.signal_name}; {self._how_to_go_on}")

    def request(self, signal_name: str) -> None:
        """Stop as if this process had received the signal."""
        if not self.signal_name:
            self.signal_name, self._asked_at = signal_name, time.monotonic()
        self._wake()

    def fail(self, error: Exception) -> None:
        """Make `unless_stopped` raise `error` from now on."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no task is waiting
            self._loop.call_soon_threadsafe(self._event.set)

    async def unless_stopped(self, work: Coroutine[Any, Any, T], *, share: float = 0.0) -> T:
        """Return the result of `work`. If a signal comes first, cancel `work`, wait for it and raise Preempted. share:
        the part of the grace_s seconds after a signal in which `work` may still finish."""
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
        # signal.signal rather than the loop's handlers: an update never yields to the loop, and users must not wait
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
    """A context manager around the work of a run, inside which signals are handled. It is the only way to await work
    that the other processes await too: every process makes the same calls in the same order.
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
        """Return the result of `work`, which the other processes know as `phase`; an error in one process is raised in
        all. If one process is asked to stop, all cancel `work`, wait for it and raise Preempted. share: the part of the
        grace_s seconds after the signal in which `work` may still finish; 1 = `work` is never cancelled.

        Inside `work`, `process_group.share` is the only allowed way to wait for other processes."""
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
        """Announce as `phase` the work that every process now computes without awaiting."""
        self._world.phase = phase

    def stop_if_asked(self, phase: str) -> None:
        """Raise Preempted in all processes if one of them was asked to stop."""
        self.at(phase)
        agree(self._world, self._stop.refuse_to_go_on)
