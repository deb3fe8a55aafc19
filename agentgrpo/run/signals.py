"""A run that is asked to stop: first signal politely, second signal at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from agentgrpo.core.errors import Preempted

T = TypeVar("T")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Inside the context, SIGTERM and SIGINT make `unless_stopped` raise Preempted. A second signal ends the process
    at once (exit code 130), and so does the end of `grace_s` seconds (75): every file on disk is valid at any instant,
    so only what came after the last checkpoint is done again. `at_once` is called before such an end.

    It is the `Stop` of a World: `request` comes from another process that got the signal, `fail` where one is lost."""

    def __init__(self, how_to_go_on: str, *, grace_s: float, at_once: Callable[[], None]) -> None:
        self._at_once = at_once
        self._patience = threading.Timer(grace_s, self._end, (Preempted.exit_code,))
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
            self._end(130)
        self._patience.start()
        self.request(signal.Signals(number).name)

    def _end(self, code: int) -> None:
        self._at_once()
        os._exit(code)

    def __enter__(self) -> StopRequest:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._patience.cancel()
