"""Which of several servers: the one with the fewest episodes; an episode stays where it is.

    in    it has joined: it serves, has the newest weights and has passed their canary, where there is one
    out   it has not, or a call on it has failed; a task of its own has it join as soon as it can

Nobody ever samples from a server that is out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence

from agentgrpo.concurrency import uncounted
from agentgrpo.engines.remote.server import Server
from agentgrpo.errors import AgentGrpoError, ConfigError, EngineError, NoServer, boundary

logger = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
MOST_PAUSE_S = 30.0
"""Pauses between attempts to join double from the first to the last of these."""


class Pool:
    """join(server, is_new) returns when it may be sampled from, else raises; is_new: it must take the weights anew."""

    def __init__(
        self, servers: Sequence[Server], *, join: Callable[[Server, bool], Awaitable[None]], wait_s: float
    ) -> None:
        """wait_s: how long calls wait while all servers are out, from when the last of them was lost. Raises
        ConfigError."""
        if not servers or len({server.url for server in servers}) < len(servers):
            given = ", ".join(server.shown for server in servers)
            raise ConfigError(f"engine.urls=[{given}]; at least one server is needed, each of them once")
        if wait_s < 0:
            raise ConfigError(f"engine.wait_s={wait_s}; 0 or more is allowed")
        self.servers = tuple(servers)
        self._join, self._wait_s = join, wait_s
        self._in: set[Server] = set()
        self._homes: dict[Hashable, Server] = {}
        self._joining: dict[Server, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._last_error = "none has been asked yet"
        self._empty_at: float | None = None
        """Loop time since which all are out."""

    @property
    def serving(self) -> list[Server]:
        """Those that are in."""
        return [server for server in self.servers if server in self._in]

    async def server_for(self, episode: Hashable) -> Server:
        """Raises NoServer as `until_serving` does."""
        await self.until_serving()
        home = self._homes.get(episode)
        if home is None or home not in self._in:
            load = Counter(self._homes.values())
            home = min(self.serving, key=lambda server: (load[server], server.live))
            self._homes[episode] = home
        return home

    async def until_serving(self) -> None:
        """Until one is in. Raises NoServer when all have been out for wait_s. An episode's time limit leaves the wait
        out."""
        with uncounted():
            while not self._in:
                await self._any_news()

    def release(self, episode: Hashable) -> None:
        self._homes.pop(episode, None)

    def leave_out(self, server: Server, reason: AgentGrpoError, *, is_new: bool = False) -> None:
        """Nobody samples from it until it has joined again. is_new: with weights that it takes anew."""
        if server in self._in or is_new:
            self._in.discard(server)
            logger.warning("%s is left out: %s", server.shown, reason)
        self._last_error = str(reason)
        if not self._in and self._empty_at is None:
            self._empty_at = asyncio.get_running_loop().time()
        if server not in self._joining or self._joining[server].done():
            task = self._until_in(server, is_new=is_new or getattr(reason, "kind", "") == "stale")
            self._joining[server] = asyncio.get_running_loop().create_task(task, name=f"agentgrpo-join {server.shown}")

    async def renew(self) -> None:
        """All are out and join anew, with other weights; returns when each has tried to. Raises NoServer where none is
        in for wait_s, ConfigError for what the user must put right."""
        await self._stop_joining()
        self._in.clear()
        outcomes = await asyncio.gather(*(self._attempt(server, is_new=True) for server in self.servers))
        for server, error in zip(self.servers, outcomes, strict=True):
            if isinstance(error, ConfigError):
                await self._stop_joining()
                raise error
            if error is not None:
                self.leave_out(server, error, is_new=True)
        await self.until_serving()

    async def close(self) -> None:
        await self._stop_joining()
        self._in.clear()
        for server in self.servers:
            await server.close()

    async def _attempt(self, server: Server, *, is_new: bool) -> AgentGrpoError | None:
        """One attempt to join; what it failed with."""
        try:
            with boundary(EngineError, f"{server.shown} joins"):
                await self._join(server, is_new)
        except AgentGrpoError as e:
            return e
        self._in.add(server)
        self._news.set()
        self._news, self._empty_at = asyncio.Event(), None
        return None

    async def _until_in(self, server: Server, *, is_new: bool) -> None:
        pause_s = FIRST_PAUSE_S
        while (error := await self._attempt(server, is_new=is_new)) is not None:
            self._last_error = str(error)
            is_new = is_new or (getattr(error, "kind", "") == "stale")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        logger.warning("%s is back", server.shown)

    async def _stop_joining(self) -> None:
        joining, self._joining = list(self._joining.values()), {}
        for task in joining:
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)

    async def _any_news(self) -> None:
        """Until one is in, or it is too late."""
        loop = asyncio.get_running_loop()
        if self._empty_at is None:
            self._empty_at = loop.time()
        try:
            async with asyncio.timeout_at(self._empty_at + self._wait_s):
                await self._news.wait()
        except TimeoutError:
            raise NoServer(
                f"no server for {self._wait_s:g} s (engine.wait_s), of {', '.join(s.shown for s in self.servers)}; "
                f"the last error: {self._last_error}; start one of them and resume the run"
            ) from None
