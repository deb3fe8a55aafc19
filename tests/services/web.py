"""A web server on a raw socket at any address of this machine, and a name server that says what it is told.

127.0.0.2 stands for the public web, because it can be allowed; 127.0.0.1 is the private machine that must not be
reached. Both are this machine's own loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence

PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"


def page(body: bytes | str = "hello", status: str = "200 OK", kind: str = "text/plain", **headers: str) -> bytes:
    body = body if isinstance(body, bytes) else body.encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def redirect(to: str, status: int = 302) -> bytes:
    return page("", f"{status} Moved", Location=to)


class Web:
    """`async with Web({"/path": answer bytes, ...}) as web`: paths not named get 404. With `drip`, the last byte is
    repeated for as long as the client listens. seen: the request heads in order."""

    def __init__(
        self,
        pages: Mapping[str, bytes] | None = None,
        *,
        address: str = PUBLIC,
        port: int = 0,
        drip: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.pages = dict(pages or {})
        self.seen: list[str] = []
        self._idle = asyncio.Event()
        self._address, self._port, self._drip, self._tls = address, port, drip, tls
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, self._address, self._port, ssl=self._tls)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def idle(self) -> None:
        """Until no connection is open, once one was."""
        await self._idle.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._idle.clear()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.seen.append(head)
            answer = self.pages.get(head.split(" ")[1], page("nothing here", "404 Not Found"))
            writer.write(answer)
            while self._drip:
                await writer.drain()
                await asyncio.sleep(0.02)
                writer.write(answer[-1:])
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client left; it has the right to
        finally:
            self._connections.discard(task)
            if not self._connections:
                self._idle.set()
            writer.close()


class Names:
    """A resolver: host -> the addresses it gives at the first lookup, at the second, ...; its last entry stays.
    asked: the hosts in order of lookup."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): list(answer) for name, answer in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        known = self.answers.get(host)
        if not known:
            raise OSError(f"{host} is not known")
        return known.pop(0) if len(known) > 1 else known[0]
