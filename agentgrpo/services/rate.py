"""A limit on calls and tokens in a time that one backend grants, first come first served."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from agentgrpo.core.concurrency import PerLoop
from agentgrpo.core.errors import ConfigError

SLACK_S = 0.02
"""No event loop is on time. So in any second at most 2 % more calls go than requests_per_second, and one more."""


@dataclass(slots=True, eq=False)
class Grant:
    """One call that may go; `tokens` is what it is expected to use."""

    at: float
    tokens: int


@dataclass(slots=True, eq=False)
class _Waiter:
    tokens: int
    granted: asyncio.Future[Grant]


@dataclass(slots=True, eq=False)
class _Line:
    """Those who wait in one event loop, the first to come at its head."""

    waiters: deque[_Waiter] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None


class RateLimiter:
    """In any `window_s` seconds at most requests_per_minute calls of together tokens_per_minute tokens are granted,
    whatever minute a server counts by; and calls that wait go 1 / requests_per_second apart, to the clock: one that is
    late by up to SLACK_S does not delay those after it, so that the rate holds. None = no such limit.

    A call goes at once only if it fits and nobody waits; a cancelled waiter spends nothing. A call of more tokens than
    the limit goes when no other has used any within the window."""

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
        self._next_at = self._free_at = -math.inf
        self._granted: deque[Grant] = deque()
        self._lines: PerLoop[_Line] = PerLoop(_Line)

    async def take(self, tokens: int = 0) -> Grant:
        """Waits for its turn."""
        loop, line = asyncio.get_running_loop(), self._lines.get()
        now = loop.time()
        if not line.waiters and self._fits_at(tokens, now) <= now:
            return self._grant(tokens, now, due=now)
        waiter = _Waiter(tokens, loop.create_future())
        line.waiters.append(waiter)
        self._serve(line)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():  # in the very tick in which it was cancelled
                self._return(waiter.granted.result())
            line.waiters = deque(w for w in line.waiters if w is not waiter)
            self._serve(line)
            raise

    def settle(self, grant: Grant, tokens: int) -> None:
        """The call has used `tokens`, whatever was expected."""
        grant.tokens = tokens
        self._serve(self._lines.get())

    def hold(self, seconds: float) -> None:
        """Nothing is granted before: the backend asks for it."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + seconds)

    def _serve(self, line: _Line) -> None:
        """Grant what fits, in order, and come back when the next one will."""
        loop = asyncio.get_running_loop()
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        while line.waiters:
            waiter, now = line.waiters[0], loop.time()
            if not waiter.granted.done():
                fits_at = self._fits_at(waiter.tokens, now)
                if fits_at > now:
                    line.timer = loop.call_at(fits_at, self._serve, line)
                    return
                waiter.granted.set_result(self._grant(waiter.tokens, now, due=max(fits_at, now - SLACK_S)))
            line.waiters.popleft()

    def _fits_at(self, tokens: int, now: float) -> float:
        """When a call of so many tokens may go, or when to look again; `now` or before: at once."""
        while self._granted and self._granted[0].at + self._window_s <= now:
            self._granted.popleft()
        used = sum(grant.tokens for grant in self._granted)
        is_full = self._max_requests is not None and len(self._granted) >= self._max_requests
        if is_full or (self._max_tokens is not None and used and used + tokens > self._max_tokens):
            return max(self._granted[0].at + self._window_s, self._next_at, self._free_at)
        return max(self._next_at, self._free_at)

    def _grant(self, tokens: int, now: float, *, due: float) -> Grant:
        grant = Grant(now, tokens)
        if self._max_requests is not None or self._max_tokens is not None:
            self._granted.append(grant)
        if self._interval_s:
            self._next_at = due + self._interval_s
        return grant

    def _return(self, grant: Grant) -> None:
        """It was granted and will not be used."""
        if grant in self._granted:  # by identity
            self._granted.remove(grant)
        self._next_at -= self._interval_s


# --- How long to wait before an attempt is repeated: no clock and no global random numbers in it.


def pause_s(
    seed: str, attempt: int, *, backoff_s: float, retry_after: str | None = None, date: str | None = None
) -> float:
    """Seconds before the attempt after `attempt` (from 0): what the server's Retry-After asks for, else
    backoff_s * 2^attempt, half of it jitter: a pure function of `seed`, so that a run repeats."""
    asked_s = retry_after_s(retry_after, date)
    if asked_s is not None:
        return asked_s
    digest = hashlib.blake2b(f"{seed} {attempt}".encode(), digest_size=8).digest()
    jitter = int.from_bytes(digest, "big") / 2**64
    return backoff_s * 2.0 ** min(attempt, 16) * (1 + jitter) / 2


def retry_after_s(retry_after: str | None, date: str | None = None) -> float | None:
    """The seconds of a Retry-After header (RFC 9110, 10.2.3); None where it has none that are to come. One that names
    a point in time is read by the clock of who sent it: `date`, the Date header of the same response."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after)
    with suppress(ValueError, TypeError, OverflowError):  # no date; or one with a time zone, and one without
        seconds = (parsedate_to_datetime(retry_after) - parsedate_to_datetime(date or "")).total_seconds()
        return seconds if seconds >= 0 else None
    return None
