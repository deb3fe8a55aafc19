"""The connections of one event loop to one server: one per request, or kept for the next ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache

import httpx

REQUESTS_PER_POOL = 8
"""At once. A pool of httpx looks at all its connections for each of them: with 128 in one it does little else."""
_tls = cache(httpx.create_ssl_context)
"""Reading the certificates takes longer than all else that a pool needs."""


class _Pool:
    """A client of httpx, and how much it has to do."""

    def __init__(self, *, keep_alive_s: float, trust_env: bool) -> None:
        self.client = httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=None if keep_alive_s else 0, keepalive_expiry=keep_alive_s),
            follow_redirects=False,
            trust_env=trust_env,
            verify=_tls(trust_env=trust_env),
        )
        self.live = 0


class Connections:
    """keep_alive_s: how long a connection may idle before it is closed; 0 = none outlives its request.

    Those that are kept end with their event loop at the latest, closed as any loop's asynchronous generators are."""

    def __init__(self, *, keep_alive_s: float, trust_env: bool) -> None:
        self._keep_alive_s, self._trust_env = keep_alive_s, trust_env
        self._pools: list[_Pool] = []
        self._guard: AsyncGenerator[None] | None = None

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()
        await self._close_pools()

    @asynccontextmanager
    async def stream(self, make: Callable[[], httpx.Request], counts: Counter[str]) -> AsyncIterator[httpx.Response]:
        """The response to a request, its head read. Counts `stale` connections. Raises httpx.HTTPError and OSError."""
        pool = self._free()
        pool.live += 1
        try:
            response = await self._send(pool.client, make, counts)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            pool.live -= 1

    def _free(self) -> _Pool:
        """The first with room, so that connections that are kept are used again before others are opened."""
        for pool in self._pools:
            if pool.live < REQUESTS_PER_POOL:
                return pool
        self._pools.append(_Pool(keep_alive_s=self._keep_alive_s, trust_env=self._trust_env))
        return self._pools[-1]

    async def _send(
        self, client: httpx.AsyncClient, make: Callable[[], httpx.Request], counts: Counter[str]
    ) -> httpx.Response:
        if not self._keep_alive_s:
            return await client.send(_made(client, make), stream=True)
        if self._guard is None:
            self._guard = self._until_the_end()
            await anext(self._guard)
        while True:
            is_fresh = False

            async def look(event: str, _: object) -> None:
                nonlocal is_fresh
                is_fresh = is_fresh or event == "connection.connect_tcp.started"

            request = _made(client, make)
            request.extensions["trace"] = look
            try:
                return await client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_fresh:
                    raise
                # It was closed while it idled. Every turn of this loop takes one such connection out of the pool.
                counts["stale"] += 1

    async def _close_pools(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.client.aclose()

    async def _until_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._close_pools()


def _made(client: httpx.AsyncClient, make: Callable[[], httpx.Request]) -> httpx.Request:
    request = make()
    for name, value in client.headers.items():
        request.headers.setdefault(name, value)
    return request
