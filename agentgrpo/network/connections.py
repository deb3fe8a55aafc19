"""The connections of one event loop to one server: one per request, or kept for the next ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx


class Connections:
    """keep_alive_s: how long a connection may idle before it is closed; 0 = none outlives its request.

    Those that are kept end with their event loop at the latest, closed as any loop's asynchronous generators are."""

    def __init__(self, *, keep_alive_s: float, trust_env: bool) -> None:
        self._client = httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=None if keep_alive_s else 0, keepalive_expiry=keep_alive_s),
            follow_redirects=False,
            trust_env=trust_env,
        )
        self._is_kept = keep_alive_s > 0
        self._guard: AsyncGenerator[None] | None = None

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()
        await self._client.aclose()

    @asynccontextmanager
    async def stream(self, make: Callable[[], httpx.Request], counts: Counter[str]) -> AsyncIterator[httpx.Response]:
        """The response to a request, its head read. Counts `stale` connections. Raises httpx.HTTPError and OSError."""
        response = await self._send(make, counts)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(self, make: Callable[[], httpx.Request], counts: Counter[str]) -> httpx.Response:
        if not self._is_kept:
            return await self._client.send(self._made(make), stream=True)
        if self._guard is None:
            self._guard = self._until_the_end()
            await anext(self._guard)
        while True:
            is_fresh = False

            async def look(event: str, _: object) -> None:
                nonlocal is_fresh
                is_fresh = is_fresh or event == "connection.connect_tcp.started"

            request = self._made(make)
            request.extensions["trace"] = look
            try:
                return await self._client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_fresh:
                    raise
                # It was closed while it idled. Every turn of this loop takes one such connection out of the pool.
                counts["stale"] += 1

    def _made(self, make: Callable[[], httpx.Request]) -> httpx.Request:
        request = make()
        for name, value in self._client.headers.items():
            request.headers.setdefault(name, value)
        return request

    async def _until_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._client.aclose()
