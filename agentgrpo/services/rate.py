"""What one backend grants, first come first served: calls and tokens in a time, and calls at once."""

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
"""No event loop is on time. So in any second at most 2 % more calls go than requests_per_second, and one more."""


LESS = 0.75
"""Of the calls under way when one is refused, so many are made at once from then on."""


@dataclass(slots=True, eq=False)
class Grant:
    """One call that may go; `tokens` is what it is expected to use."""

    at: float
    tokens: int
    number: int
    """Calls have theirs in the order in which they came, and keep it when they go again."""


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
    """The first to come at its head."""
    live: int = 0
    """Under way."""
    timer: asyncio.TimerHandle | None = None


class RateLimiter:
    """In any `window_s` seconds at most requests_per_minute calls of together tokens_per_minute tokens are granted,
    whatever minute a server counts by; and calls that wait go 1 / requests_per_second apart, to the clock: one that is
    late by up to SLACK_S does not delay those after it, so that the rate holds. None = no such limit.

    Any number of calls are under way at once until the backend refuses one. From then on there are LESS times as many,
    one more each time that as many have been answered, and fewer again at the next refusal (additive increase,
    multiplicative decrease). So the number stays near what the backend takes, also where others call it too.

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
        self._next_at = self._free_at = self._answered_at = -math.inf
        self._most_live = math.inf
        self._granted: deque[Grant] = deque()
        self._numbers = count()
        self._lines: PerLoop[_Line] = PerLoop(_Line)

    @asynccontextmanager
    async def turn(self, tokens: int = 0, *, again: Grant | None = None) -> AsyncIterator[Grant]:
        """One attempt, under way until the block ends. again: what the call went by before; it goes before those that
        came after it. Raises TimeoutError (give_up)."""
        grant, line = await self.take(tokens, again=again), self._lines.get()
        try:
            yield grant
        finally:
            line.live -= 1
            self._serve(line)

    async def take(self, tokens: int = 0, *, again: Grant | None = None) -> Grant:
        """Waits for its turn."""
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
            if waiter.granted.done() and not waiter.granted.cancelled():  # in the very tick in which it was cancelled
                self._return(line, waiter.granted.result())
            line.waiters = deque(w for w in line.waiters if w is not waiter)
            self._serve(line)
            raise

    def settle(self, grant: Grant, tokens: int) -> None:
        """The call has used `tokens`, whatever was expected."""
        grant.tokens = tokens
        self._serve(self._lines.get())

    def answered(self) -> None:
        """One of the calls under way."""
        line = self._lines.get()
        self._answered_at = asyncio.get_running_loop().time()
        if not self._has_room(line):
            self._most_live += 1 / self._most_live

    def refused(self, grant: Grant, seconds: float) -> None:
        """The backend has not taken this call, and asks for `seconds` before its next attempt. Beside others it was one
        too many; alone it came too soon, and so would every other."""
        line = self._lines.get()
        if line.live <= self._most_live:  # those that are more have gone before the number fell
            self._most_live = max(1.0, LESS * line.live)
        if line.live <= 1:
            self.hold(seconds)
        self.settle(grant, 0)

    def hold(self, seconds: float) -> None:
        """Nothing is granted before: the backend asks for it."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + seconds)

    def give_up(self, since: float) -> None:
        """A call has been refused for as long as it could wait: who has waited since then, and nobody has been answered
        in that time, waits no longer."""
        if self._answered_at <= since:
            for waiter in self._lines.get().waiters:
                if waiter.came <= since and not waiter.granted.done():
                    waiter.granted.set_exception(TimeoutError())

    def _serve(self, line: _Line) -> None:
        """Grant what fits, in order, and come back when the next one will."""
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
        """When a call of so many tokens may go, or when to look again; `now` or before: at once."""
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
        """It was granted and will not be used."""
        line.live -= 1
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
