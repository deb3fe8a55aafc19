"""What a server has to do and has done: one line for many requests, never one for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentgrpo.retrievers.server.questions import Limits, Refused


class Traffic:
    """Counts requests and their seconds (`now`), and says a line after every `log_every` of them.

    counts: requests, queries, refused (the client's fault), failed (ours)."""

    def __init__(self, *, limits: Limits, log_every: int, now: Callable[[], float], say: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter(requests=0, queries=0, refused=0, failed=0)
        self.waiting = 0
        self._most_waiting = 0
        self._limits = limits
        self._log_every = log_every
        self._now, self._say = now, say
        self._seconds: list[float] = []
        self._before = self.counts.copy()

    @contextmanager
    def request(self) -> Iterator[None]:
        """From the first byte of a body to the answer."""
        began = self._now()
        try:
            yield
        except Refused as e:
            self.counts["failed" if e.status == 500 else "refused"] += 1
            raise
        except Exception:
            self.counts["failed"] += 1
            raise
        finally:
            self.counts["requests"] += 1
            self._seconds.append(self._now() - began)
            if len(self._seconds) == self._log_every:
                self._say(self._line())

    @contextmanager
    def queries(self, number: int) -> Iterator[None]:
        """While so many are answered. Raises Refused where too many wait already."""
        if self.waiting and self.waiting + number > self._limits.waiting:
            raise Refused(503, f"{self.waiting} queries are waiting already; come again in a second")
        self.counts["queries"] += number
        self.waiting += number
        self._most_waiting = max(self._most_waiting, self.waiting)
        try:
            yield
        finally:
            self.waiting -= number

    def _line(self) -> str:
        """Of the requests since the last one."""
        seconds, new = sorted(self._seconds), self.counts - self._before
        self._seconds, self._before = [], self.counts.copy()
        most, self._most_waiting = self._most_waiting, self.waiting
        p50, p99 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        return (
            f"{new['requests']} requests, {new['queries']} queries, p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, "
            f"at most {most} queries at once, {new['refused']} refused, {new['failed']} failed"
        )
