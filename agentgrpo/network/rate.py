"""A limit on calls and tokens per minute that one backend grants, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from agentgrpo.concurrency import PerLoop
from agentgrpo.errors import ConfigError


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
    whatever minute a server counts by. None = no such limit.

    A call goes at once only if it fits and nobody waits; a cancelled waiter spends nothing. A call of more tokens than
    the limit goes when no other has used any within the window."""

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        window_s: float = 60.0,
    ) -> None:
        for name, limit in {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}.items():
            if limit is not None and limit < 1:
                raise ConfigError(f"{name}={limit}; 1 or more is allowed, and null for no limit")
        self._max_requests, self._max_tokens, self._window_s = requests_per_minute, tokens_per_minute, window_s
        self._granted: deque[Grant] = deque()
        self._lines: PerLoop[_Line] = PerLoop(_Line)

    async def take(self, tokens: int = 0) -> Grant:
        """Waits for its turn."""
        loop, line = asyncio.get_running_loop(), self._lines.get()
        if not line.waiters and self._fits(tokens, loop.time()):
            return self._grant(tokens, loop.time())
        waiter = _Waiter(tokens, loop.create_future())
        line.waiters.append(waiter)
        self._serve(line)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():  # in the very tick in which it was cancelled
                self._granted.remove(waiter.granted.result())
            line.waiters = deque(w for w in line.waiters if w is not waiter)
            self._serve(line)
            raise

    def settle(self, grant: Grant, tokens: int) -> None:
        """The call has used `tokens`, whatever was expected."""
        grant.tokens = tokens
        self._serve(self._lines.get())

    def _serve(self, line: _Line) -> None:
        """Grant what fits, in order, and come back when the oldest grant leaves the window."""
        loop = asyncio.get_running_loop()
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        while line.waiters and (line.waiters[0].granted.done() or self._fits(line.waiters[0].tokens, loop.time())):
            waiter = line.waiters.popleft()
            if not waiter.granted.done():
                waiter.granted.set_result(self._grant(waiter.tokens, loop.time()))
        if line.waiters:
            line.timer = loop.call_at(self._granted[0].at + self._window_s, self._serve, line)

    def _fits(self, tokens: int, now: float) -> bool:
        while self._granted and self._granted[0].at + self._window_s <= now:
            self._granted.popleft()
        if self._max_requests is not None and len(self._granted) >= self._max_requests:
            return False
        used = sum(grant.tokens for grant in self._granted)
        return self._max_tokens is None or used == 0 or used + tokens <= self._max_tokens

    def _grant(self, tokens: int, now: float) -> Grant:
        grant = Grant(now, tokens)
        if self._max_requests is not None or self._max_tokens is not None:
            self._granted.append(grant)
        return grant
