"""Rate limits of one backend, first come first served: calls and tokens per time, and concurrent calls."""

from __future__ import annotations

import asyncio
import hashlib
import math
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import count

from agentgrpo.core.concurrency import PerLoop
from agentgrpo.core.errors import ConfigError

SLACK_S = 0.02
"""Tolerated delay of the event loop. Because of it, up to 2 % more calls than requests_per_second, and one more, may go
in a second."""


LESS = 0.75
"""A refusal cuts the limit on concurrent calls to this factor of the calls under way."""


@dataclass(slots=True, eq=False)
class Grant:
    """Permission for one call; `tokens` is its expected use, later its actual use."""

    at: float
    tokens: int
    number: int
    """Number of the call in order of arrival; a repeated call keeps it."""


@dataclass(slots=True, eq=False)
class _Waiter:
    tokens: int
    number: int
    came: float
    granted: asyncio.Future[Grant]


@dataclass(slots=True, eq=False)
class _Line:
    """The calls of one event loop."""

    waiters: deque[_Waiter] = field(default_factory=deque)
    """Waiting calls, in order of arrival."""
    live: int = 0
    """Number of calls under way."""
    timer: asyncio.TimerHandle | None = None


class RateLimiter:
    """Limit the calls to a backend; None = no such limit.

    In any `window_s` seconds at most requests_per_minute calls with tokens_per_minute tokens in total are granted, so
    the limit holds for any minute that a server counts by. Waiting calls go 1 / requests_per_second apart, by the
    clock: a call that is up to SLACK_S late does not delay the calls after it, so the rate is kept.

    The number of calls under way is unlimited until the backend refuses a call. Then it is cut to LESS times the number
    under way. It grows by one each time that this many calls have been answered, and is cut again at the next refusal
    (additive increase, multiplicative decrease). So it stays near the backend's capacity, also if others use the
    backend.

    A call goes at once only if it fits and nobody waits; a cancelled waiter uses nothing up. A call with more tokens
    than the limit goes when no other call has used tokens within the window."""

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        requests_per_second: float | None = None,
        window_s: float = 60.0,
    ) -> None:
        for name, limit in {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}.items():
            if limit is not None and limit < 1:
                raise ConfigError(f"{name}={limit}; 1 or more is allowed, and null for no limit")
        if requests_per_second is not None and not 0 < requests_per_second < math.inf:
            raise ConfigError(f"requests_per_second={requests_per_second}; above 0 is allowed, and null for no limit")
        self._max_requests, self._max_tokens, self._window_s = requests_per_minute, tokens_per_minute, window_s
        self._interval_s = 0.0 if requests_per_second is None else 1 / requests_per_second
        self._next_at = self._free_at = self._answered_at = -math.inf
        self._most_live = math.inf
        self._granted: deque[Grant] = deque()
        self._numbers = count()
        self._lines: PerLoop[_Line] = PerLoop(_Line)

    @asynccontextmanager
    async def turn(self, tokens: int = 0, *, again: Grant | None = None) -> AsyncIterator[Grant]:
        """Wait for the turn of one attempt, which is under way until the block ends. again: the grant of the call's
        last attempt, so that the call keeps its place in the queue. Raises TimeoutError (give_up)."""
        grant, line = await self.take(tokens, again=again), self._lines.get()
        try:
            yield grant
        finally:
            line.live -= 1
            self._serve(line)

    async def take(self, tokens: int = 0, *, again: Grant | None = None) -> Grant:
        """Wait for the turn of one attempt, and count it as under way."""
        loop, line = asyncio.get_running_loop(), self._lines.get()
        now, number = loop.time(), next(self._numbers) if again is None else again.number
        if not line.waiters and self._has_room(line) and self._fits_at(tokens, now) <= now:
            return self._grant(line, tokens, number, now, due=now)
        waiter = _Waiter(tokens, number, now, loop.create_future())
        insort(line.waiters, waiter, key=lambda w: w.number)
        self._serve(line)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():  # granted in the tick of the cancellation
                self._return(line, waiter.granted.result())
            line.waiters = deque(w for w in line.waiters if w is not waiter)
            self._serve(line)
            raise

    def settle(self, grant: Grant, tokens: int) -> None:
        """Replace the expected tokens of a call by the tokens that it has used."""
        grant.tokens = tokens
        self._serve(self._lines.get())

    def answered(self) -> None:
        """Record that a call under way was answered."""
        line = self._lines.get()
        self._answered_at = asyncio.get_running_loop().time()
        if not self._has_room(line):
            self._most_live += 1 / self._most_live

    def refused(self, grant: Grant, seconds: float) -> None:
        """Record that the backend refused this call, which may be repeated in `seconds`. If other calls are under way,
        there were too many; if it was alone, it came too soon, and every other call waits as well."""
        line = self._lines.get()
        if line.live <= self._most_live:  # the excess started before the last cut
            self._most_live = max(1.0, LESS * line.live)
        if line.live <= 1:
            self.hold(seconds)
        self.settle(grant, 0)

    def hold(self, seconds: float) -> None:
        """Grant nothing for `seconds`, as the backend asks."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + seconds)

    def give_up(self, since: float) -> None:
        """End all waiting since `since` with TimeoutError, unless a call has been answered after that: a call has been
        refused for as long as it could wait."""
        if self._answered_at <= since:
            for waiter in self._lines.get().waiters:
                if waiter.came <= since and not waiter.granted.done():
                    waiter.granted.set_exception(TimeoutError())

    def _serve(self, line: _Line) -> None:
        """Grant the waiting calls that fit, in order; call again at the time when the next one fits."""
        loop = asyncio.get_running_loop()
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        while line.waiters:
            waiter, now = line.waiters[0], loop.time()
            if not waiter.granted.done():
                if not self._has_room(line):
                    return  # until another call has ended
                fits_at = self._fits_at(waiter.tokens, now)
                if fits_at > now:
                    line.timer = loop.call_at(fits_at, self._serve, line)
                    return
                due = max(fits_at, now - SLACK_S)
                waiter.granted.set_result(self._grant(line, waiter.tokens, waiter.number, now, due=due))
            line.waiters.popleft()

    def _has_room(self, line: _Line) -> bool:
        return line.live + 1 <= self._most_live

    def _fits_at(self, tokens: int, now: float) -> float:
        """Return the time at which a call with `tokens` may go, or is checked again; up to `now` = at once."""
        while self._granted and self._granted[0].at + self._window_s <= now:
            self._granted.popleft()
        used = sum(grant.tokens for grant in self._granted)
        is_full = self._max_requests is not None and len(self._granted) >= self._max_requests
        if is_full or (self._max_tokens is not None and used and used + tokens > self._max_tokens):
            return max(self._granted[0].at + self._window_s, self._next_at, self._free_at)
        return max(self._next_at, self._free_at)

    def _grant(self, line: _Line, tokens: int, number: int, now: float, *, due: float) -> Grant:
        grant = Grant(now, tokens, number)
        line.live += 1
        if self._max_requests is not None or self._max_tokens is not None:
            self._granted.append(grant)
        if self._interval_s:
            self._next_at = due + self._interval_s
        return grant

    def _return(self, line: _Line, grant: Grant) -> None:
        """Take back a grant that will not be used."""
        line.live -= 1
        if grant in self._granted:  # compared by identity
            self._granted.remove(grant)
        self._next_at -= self._interval_s


# --- The pause before an attempt is repeated, without a clock or global random numbers.


def pause_s(
    seed: str, attempt: int, *, backoff_s: float, retry_after: str | None = None, date: str | None = None
) -> float:
    """Return the seconds to wait after attempt number `attempt` (from 0): the server's Retry-After, else backoff_s *
    2^attempt, half of it jitter. The jitter is a pure function of `seed`, so that runs are reproducible."""
    asked_s = retry_after_s(retry_after, date)
    if asked_s is not None:
        return asked_s
    digest = hashlib.blake2b(f"{seed} {attempt}".encode(), digest_size=8).digest()
    jitter = int.from_bytes(digest, "big") / 2**64
    return backoff_s * 2.0 ** min(attempt, 16) * (1 + jitter) / 2


def retry_after_s(retry_after: str | None, date: str | None = None) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3); None if it is missing, invalid or in the past. A
    header with a point in time is relative to the sender's clock: `date`, the Date header of the same response."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after)
    with suppress(ValueError, TypeError, OverflowError):  # not a date; or only one date has a time zone
        seconds = (parsedate_to_datetime(retry_after) - parsedate_to_datetime(date or "")).total_seconds()
        return seconds if seconds >= 0 else None
    return None
