"""One sampling server: its requests and its load; the Dialect interface; and the pool of servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from agentgrpo.core.concurrency import uncounted
from agentgrpo.core.errors import AgentGrpoError, ConfigError, EngineError, NoServer, boundary
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.services.client import JsonClient, shown
from agentgrpo.services.secret import Secret

T = TypeVar("T")
KEEP_ALIVE_S = 2.0
"""Shorter than 5 seconds, after which servers close idle connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How servers are accessed. Timeouts span a whole call."""

    api_key_env: str | None = None
    """Name of the environment variable that holds the key."""
    timeout_s: float = 600.0
    """Timeout of a sampled turn."""
    sync_timeout_s: float = 600.0
    """Timeout of loading weights."""
    look_timeout_s: float = 30.0
    """Timeout of a query that takes no work."""
    max_response_bytes: int = 2**26
    trust_env: bool = True


class SamplingServer:
    """One server. `get` and `post` make one attempt and raise EngineError with the kinds of services.client."""

    def __init__(self, url: str, access: Access) -> None:
        """url: with or without /v1 at its end. Raises ConfigError."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.shown = shown(self.url)
        self.live = 0
        """Number of calls in progress."""
        self.memory: dict[str, Any] = {}
        """Facts that a Dialect has learned about the server since it last looked."""
        self.access = access
        self._clients: dict[tuple[str, float, bool], JsonClient] = {}
        self._client("/health", access.look_timeout_s, is_json=False)  # raises for an invalid URL

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1

    async def get(
        self, path: str, read: Callable[[Any], T], *, is_json: bool = True, timeout_s: float | None = None
    ) -> T:
        """Return `read` applied to the reply. timeout_s: None = look_timeout_s."""
        timeout_s = self.access.look_timeout_s if timeout_s is None else timeout_s
        return await self._client(path, timeout_s, is_json=is_json).get({}, read)

    async def post(self, path: str, payload: Mapping[str, Any], read: Callable[[Any], T], *, is_json: bool = True) -> T:
        """Return `read` applied to the reply, which may take timeout_s."""
        return await self._client(path, self.access.timeout_s, is_json=is_json).post(payload, read)

    async def order(self, path: str, payload: Mapping[str, Any]) -> None:
        """Request an action that may take sync_timeout_s; the content of the reply is ignored."""
        await self._client(path, self.access.sync_timeout_s, is_json=False).post(payload, lambda _: None)

    async def close(self) -> None:
        """Close the connections; a later call would open new ones."""
        for client in self._clients.values():
            await client.close()

    def _client(self, path: str, timeout_s: float, *, is_json: bool) -> JsonClient:
        known = (path, timeout_s, is_json)
        if known not in self._clients:
            access = self.access
            self._clients[known] = JsonClient(
                url=self.url + path,
                error=EngineError,
                timeout_s=timeout_s,
                retries=0,
                max_response_bytes=access.max_response_bytes,
                trust_env=access.trust_env,
                secrets=(Secret(access.api_key_env),) if access.api_key_env else (),
                keep_alive_s=KEEP_ALIVE_S,
                is_json=is_json,
                is_quiet=True,  # the pool reports it once
                setting="engine.timeout_s",
            )
        return self._clients[known]


# --- The differences between kinds of servers: one Dialect for each. Every failure is an EngineError; its `kind`
# decides what happens next.
#
# http_4xx, bad_tokens     the request's own fault: raised
# all others               the server's fault: it is left out until it has joined again; the call goes to another

OURS = frozenset({"http_4xx", "bad_tokens", "context_overflow"})
"""Kinds of failures that would occur on any server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the weights to sample from."""

    policy_version: int
    name: str
    """Name of this version with this content, the same on every process; no other weights have it."""
    folder: Path
    """Folder to which the first process has written the weights."""
    is_adapter: bool


class Sampled(NamedTuple):
    """One turn from a server."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


LEAST_BIAS = -100.0
"""The lowest logit bias that servers accept: a token with this bias is never drawn."""


class Dialect(Protocol):
    """Interface to one kind of server. version: None = whatever the server serves."""

    trainable: bool
    """See Engine."""
    unused_ids: frozenset[int]
    """Rows of the model's output layer that stand for no token: the server is told not to draw them."""

    async def look(self, server: SamplingServer) -> int | None:
        """Check at low cost whether the server is serving, and return the tokens that fit into a context (None = not
        reported). Clears what was known of the server, because it may have been restarted."""
        ...

    async def holds(self, server: SamplingServer, version: Version) -> bool:
        """Return whether the server reports that it would sample from `version`."""
        ...

    async def install(self, server: SamplingServer, version: Version) -> None:
        """Make the server sample from `version`, without anything computed with older weights. Called on the first
        process only, while nothing is being sampled."""
        ...

    async def sample(
        self,
        server: SamplingServer,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        version: Version | None,
    ) -> Sampled:
        """Sample one turn. The log-probs are those of the distribution that was drawn from; otherwise raises
        ConfigError that says what to do. Raises EngineError (`stale`) if the server may not have sampled from
        `version`. Stops when cancelled."""
        ...

    async def score(self, server: SamplingServer, token_ids: Sequence[int], version: Version | None) -> list[float]:
        """See Engine."""
        ...


def seed_of(run_seed: int, key: SeedKey) -> int:
    """Return the seed of a turn, below 2**63: a function of the run's seed and the turn's names."""
    names = json.dumps([run_seed, *key])  # unambiguous: no two different keys share one spelling
    digest = hashlib.blake2b(names.encode(), digest_size=8, person=b"agentgrpo.remote").digest()
    return int.from_bytes(digest, "little") >> 1


# --- The choice of a server: the one with the fewest episodes; an episode stays on its server.
#
#     in    the server has joined: it serves, has the newest weights and has passed their canary, if one is set
#     out   it has not joined, or a call on it has failed; a background task makes it join as soon as possible
#
# A server that is out is never sampled from.

logger = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
MOST_PAUSE_S = 30.0
"""Maximum pause between attempts to join; pauses double from FIRST_PAUSE_S up to this."""


class Pool:
    """join(server, is_new) returns when the server may be sampled from, else raises; is_new: it must load the weights
    again."""

    def __init__(
        self,
        servers: Sequence[SamplingServer],
        *,
        join: Callable[[SamplingServer, bool], Awaitable[None]],
        wait_s: float,
    ) -> None:
        """wait_s: how long calls wait while all servers are out, counted from the loss of the last one. Raises
        ConfigError."""
        if not servers or len({server.url for server in servers}) < len(servers):
            given = ", ".join(server.shown for server in servers)
            raise ConfigError(f"engine.urls=[{given}]; at least one server is needed, each of them once")
        if wait_s < 0:
            raise ConfigError(f"engine.wait_s={wait_s}; 0 or more is allowed")
        self.servers = tuple(servers)
        self._join, self._wait_s = join, wait_s
        self._in: set[SamplingServer] = set()
        self._homes: dict[Hashable, SamplingServer] = {}
        self._joining: dict[SamplingServer, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._last_error = "none has been asked yet"
        self._empty_at: float | None = None
        """Loop time since which all servers are out."""

    @property
    def serving(self) -> list[SamplingServer]:
        """The servers that are in."""
        return [server for server in self.servers if server in self._in]

    async def server_for(self, episode: Hashable) -> SamplingServer:
        """Return the server of the episode. Raises NoServer like `until_serving`."""
        await self.until_serving()
        home = self._homes.get(episode)
        if home is None or home not in self._in:
            load = Counter(self._homes.values())
            home = min(self.serving, key=lambda server: (load[server], server.live))
            self._homes[episode] = home
        return home

    async def until_serving(self) -> None:
        """Wait until a server is in. Raises NoServer when all have been out for wait_s. The wait does not count towards
        an episode's time limit."""
        with uncounted():
            while not self._in:
                await self._any_news()

    def release(self, episode: Hashable) -> None:
        self._homes.pop(episode, None)

    def leave_out(self, server: SamplingServer, reason: AgentGrpoError, *, is_new: bool = False) -> None:
        """Do not sample from the server until it has joined again. is_new: it must then load the weights again."""
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
        """Put all servers out and let them join again with new weights; return when each has tried. Raises NoServer if
        no server is in for wait_s, and ConfigError for problems that the user must fix."""
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

    async def _attempt(self, server: SamplingServer, *, is_new: bool) -> AgentGrpoError | None:
        """Make one attempt to join, and return its error, if any."""
        try:
            with boundary(EngineError, f"{server.shown} joins"):
                await self._join(server, is_new)
        except AgentGrpoError as e:
            return e
        self._in.add(server)
        self._news.set()
        self._news, self._empty_at = asyncio.Event(), None
        return None

    async def _until_in(self, server: SamplingServer, *, is_new: bool) -> None:
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
        """Wait until a server is in. Raises NoServer when it is too late."""
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
