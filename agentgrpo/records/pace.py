"""How fast work goes, and how long what is left of it takes: judged by the median of its last spans, so that one that
stalls (a checkpoint, a slow answer) counts no more than any other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

SPAN_S = 1.0
"""A span is at least as long: answers that come in a burst are one."""
RECENT = 15


class Pace:
    """Of the first answer only its time counts: what came before it was warming up, or done by an earlier run."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._spans: deque[float] = deque(maxlen=RECENT)
        self.begin()

    def begin(self) -> None:
        """Other work."""
        self._position: float | None = None
        self._at = self._now()
        self._spans.clear()
        self.seconds_per_unit: float | None = None

    def reached(self, position: float) -> None:
        """Positions only rise."""
        if self._position is None:
            self._position, self._at = position, self._now()
            return
        seconds, units = self._now() - self._at, position - self._position
        if units > 0 and seconds >= SPAN_S:
            self._spans.append(seconds / units)
            self._position, self._at = position, self._now()
            self.seconds_per_unit = median(self._spans)

    def left(self, units: float) -> float | None:
        """Seconds until `units` more are done, never less than 0; None where nothing is known yet. Between two answers
        it falls, though not below what would be left after the next one."""
        each = self.seconds_per_unit
        if each is None:
            return None
        first = min(1.0, max(0.0, units))
        return max(0.0, first * each - (self._now() - self._at)) + max(0.0, units - first) * each


def clock(seconds: float) -> str:
    """ "0:09", "12:30", "1:02:03"."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
