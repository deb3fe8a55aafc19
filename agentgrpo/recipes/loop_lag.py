"""How late an event loop is: the seconds by which its timers miss their time.

Whatever computes or waits on the loop's own thread without awaiting (a tool that calls time.sleep) makes everybody else
wait just as long. Measured while the loop has nothing better to do than to serve a rollout: an update that holds it up
is no fault. So are the engine's forwards none, nor the answers to signals; they count, but nobody is blamed for them.
"""

from __future__ import annotations

import asyncio
import math
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import agentgrpo
from agentgrpo.recipes.await_chains import frames, place

PERIOD_S = 0.05
"""Between two timers."""
_PACKAGE = Path(agentgrpo.__file__).parent
_BLAMELESS = tuple(f"{_PACKAGE}/{path}" for path in ("engines/", "recipes/diagnostics.py"))
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class _Span:
    """One stretch of measuring, of one loop."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.due = time.monotonic()
        self.culprit: str | None = None
        """Who was seen to have the loop when it was late; "" = nobody to blame."""


class LoopLag:
    """`measured` is entered on the loop; `look` is called again and again by another thread. say: told once, of the
    first lag above `max_s` that somebody is to blame for; null = never."""

    def __init__(self, *, max_s: float | None, say: Callable[[str], None]) -> None:
        self._max_s, self._say = max_s, say
        self._span: _Span | None = None
        self._timer: asyncio.Handle | None = None
        self._lags: list[float] = []
        self._is_told = False

    @property
    def patience(self) -> float | None:
        """Seconds until the next `look` at most; null = any number."""
        return None if self._span is None or self._max_s is None else self._max_s / 4

    @contextmanager
    def measured(self, label: str) -> Iterator[None]:
        span = self._span = _Span(label)
        self._timer = span.loop.call_soon(self._ring, span)  # even the shortest stretch has a measurement
        try:
            yield
        finally:
            self._timer.cancel()
            self._span = None

    def look(self) -> None:
        """Where the loop is late: see who has it."""
        span = self._span
        if span is None or self._max_s is None or span.culprit is not None:
            return
        if time.monotonic() - span.due > self._max_s:
            span.culprit = _culprit(span)

    def lap(self) -> dict[str, float]:
        """time/loop_lag/p50, p99 and max, in seconds, since the last lap; nothing where nothing was measured."""
        lags, self._lags = sorted(self._lags), []
        return {
            f"time/loop_lag/{name}": lags[math.ceil(share * len(lags)) - 1]
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            if lags
        }

    def _ring(self, span: _Span) -> None:
        lag, culprit = time.monotonic() - span.due, span.culprit
        self._lags.append(lag)
        span.due, span.culprit = time.monotonic() + PERIOD_S, None
        self._timer = span.loop.call_later(PERIOD_S, self._ring, span)
        if culprit and not self._is_told:
            self._is_told = True
            self._say(
                f"note: {span.label}: the event loop stood still for {lag:.1f} s, held up by {culprit}; all episodes "
                "waited. What blocks belongs into a thread or process of its own (run.max_loop_lag_s; said once)"
            )


def _culprit(span: _Span) -> str:
    """The task that has the loop's thread, and the line of it that is nobody's library."""
    task = asyncio.current_task(span.loop)
    frame = sys._current_frames().get(span.thread)
    if task is None or frame is None or any(f.f_code.co_filename.startswith(_BLAMELESS) for f in frames(frame)):
        return ""
    own = next((f for f in frames(frame) if not f.f_code.co_filename.startswith(_LIBRARIES)), frame)
    return f"{task.get_name()} at {place(own)}"
