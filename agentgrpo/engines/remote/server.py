"""One server that samples: its requests, and how much it has to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgrpo.errors import EngineError
from agentgrpo.network.client import JsonClient, shown
from agentgrpo.network.secret import Secret

T = TypeVar("T")
KEEP_ALIVE_S = 2.0
"""Servers close connections that idle for 5 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How servers are spoken to. Seconds span a whole call."""

    api_key_env: str | None = None
    """Name of the environment variable with the key."""
    timeout_s: float = 600.0
    """Of a sampled turn."""
    sync_timeout_s: float = 600.0
    """Of loading weights."""
    look_timeout_s: float = 30.0
    """Of a question that costs nothing."""
    max_response_bytes: int = 2**26
    trust_env: bool = True


class Server:
    """`get` and `post` make one attempt, and raise EngineError with the kinds of network.client."""

    def __init__(self, url: str, access: Access) -> None:
        """url: with or without /v1 at its end. Raises ConfigError."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.shown = shown(self.url)
        self.live = 0
        """Calls under way."""
        self.memory: dict[str, Any] = {}
        """What a Dialect knows of it since it looked last."""
        self.access = access
        self._clients: dict[tuple[str, float, bool], JsonClient] = {}
        self._client("/health", access.look_timeout_s, is_json=False)  # raises for a URL that is none

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
        """`read` applied to the reply. timeout_s: None = look_timeout_s."""
        timeout_s = self.access.look_timeout_s if timeout_s is None else timeout_s
        return await self._client(path, timeout_s, is_json=is_json).get({}, read)

    async def post(self, path: str, payload: Mapping[str, Any], read: Callable[[Any], T], *, is_json: bool = True) -> T:
        """`read` applied to the reply, which may take timeout_s."""
        return await self._client(path, self.access.timeout_s, is_json=is_json).post(payload, read)

    async def order(self, path: str, payload: Mapping[str, Any]) -> None:
        """Have something done that may take sync_timeout_s; what it answers says nothing."""
        await self._client(path, self.access.sync_timeout_s, is_json=False).post(payload, lambda _: None)

    async def close(self) -> None:
        """Ends the connections; the next call would open new ones."""
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
                is_quiet=True,  # the pool says it once
            )
        return self._clients[known]
