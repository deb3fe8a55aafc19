"""A retrieval server on a raw socket, and every way in which one can go wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakSet

Behaviour = Callable[[Any, asyncio.StreamWriter], Awaitable[None]]
"""Gets the parsed request body and answers on the stream, however it likes."""


class Server:
    """`async with Server(...) as server`: behaves as `plan` says, one entry a request, and then as its last entry says.

    requests: the parsed bodies, or the query of a GET, in order of arrival. live: connections that are open; most_live:
    their maximum; connections: all there were. One is closed after its answer, or with keep_alive when the client
    closes it."""

    def __init__(self, *plan: Behaviour, keep_alive: bool = False) -> None:
        self.plan = plan
        self.keep_alive = keep_alive
        self.requests: list[Any] = []
        self.heads: list[str] = []
        self.live = self.most_live = self.connections = 0
        self._change = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()  # alive while their connections are

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/retrieve"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await _ticks()  # who has just come in is known only when its task has begun
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # what nobody reads any more would keep its socket open
        await _ticks()  # to be closed indeed
        await self._server.wait_closed()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._change:
            await self._change.wait_for(condition)

    async def _count(self, change: int) -> None:
        async with self._change:
            self.live += change
            self.most_live = max(self.live, self.most_live)
            self._change.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        self.connections += 1
        await self._count(1)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head.lower())
                self.requests.append(await _request(head, reader))
                await self.plan[min(len(self.requests), len(self.plan)) - 1](self.requests[-1], writer)
                if not self.keep_alive:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client left; it has the right to
        finally:
            await self._count(-1)
            self._connections.discard(task)
            writer.close()


async def _request(head: str, reader: asyncio.StreamReader) -> Any:
    lengths = [line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
    if not lengths:
        return dict(parse_qsl(urlsplit(head.split(" ")[1]).query))
    return json.loads(await reader.readexactly(int(lengths[0])))


async def _ticks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def response(body: bytes | str, status: str = "200 OK", headers: str = "") -> bytes:
    body = body if isinstance(body, bytes) else body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def say(body: object, status: str = "200 OK", headers: str = "") -> Behaviour:
    """One complete response; what is neither text nor bytes becomes JSON."""

    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(response(body if isinstance(body, bytes | str) else json.dumps(body), status, headers))
        await writer.drain()

    return behave


def document(query: str, rank: int = 1) -> dict[str, Any]:
    return {"document": {"id": f"{query}-{rank}", "contents": f'"{query}"\nabout {query}'}, "score": 1 / rank}


async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
    """What a good server does: topk documents for each query, ids "query-rank"."""
    rows = [[document(q, rank) for rank in range(1, request["topk"] + 1)] for q in request["queries"]]
    await say({"result": rows})(request, writer)


def after(seconds: float, behaviour: Behaviour) -> Behaviour:
    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await behaviour(request, writer)

    return behave


def drip(head: bytes, byte: bytes, pause: float = 0.02) -> Behaviour:
    """`head`, then `byte` again and again for as long as the client listens."""

    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            await writer.drain()
            await asyncio.sleep(pause)
            writer.write(byte)

    return behave


async def hang(request: Any, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_up(request: Any, writer: asyncio.StreamWriter) -> None:
    """Closes without a word."""


async def reset(request: Any, writer: asyncio.StreamWriter) -> None:
    """Half a body, then a TCP reset."""
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"result": [')
    await writer.drain()
    await asyncio.sleep(0.02)
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def say_raw(data: bytes) -> Behaviour:
    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return behave


BIG = 10 * 2**20
FAULTS: dict[str, tuple[Behaviour, str]] = {
    "hangs": (hang, "timeout"),
    "hangs up": (hang_up, "transport"),
    "resets in mid-body": (reset, "transport"),
    "drips a body": (drip(b"HTTP/1.1 200 OK\r\n\r\n", b" "), "timeout"),
    "drips chunks": (drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), "timeout"),
    "drips headers": (drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "timeout"),
    "drips a status line": (drip(b"HTTP/1.1 200 O", b"K"), "timeout"),
    "speaks no HTTP": (say("", status="999999 ?", headers="\x00"), "transport"),
    "cuts the body short": (say_raw(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"result": []}'), "transport"),
    "500": (say("oops", "500 Internal Server Error"), "http_500"),
    "503": (say("busy", "503 Service Unavailable"), "http_500"),
    "429": (say("slow down", "429 Too Many Requests", "Retry-After: 3600\r\n"), "http_429"),
    "404": (say("where?", "404 Not Found"), "http_4xx"),
    "422": (say({"detail": "no field topk"}, "422 Unprocessable Entity"), "http_4xx"),
    "redirects in a loop": (say("", "307 Temporary Redirect", "Location: /retrieve\r\n"), "http_3xx"),
    "204": (say("", "204 No Content"), "garbage"),
    "200 and nothing": (say(""), "garbage"),
    "200 and HTML": (say("<html>It works!</html>", headers="Content-Type: text/html\r\n"), "garbage"),
    "truncated JSON": (say('{"result": [[{"document": {"id": "a"'), "garbage"),
    "deep JSON": (say('{"result": ' + "[" * 100_000), "garbage"),
    "a 5000-digit number": (say('{"result": [[' + "9" * 5000 + "]]}"), "garbage"),
    "no UTF-8": (say(b'{"result": [["\xff\xfe"]]}'), "garbage"),
    "JSON null": (say("null"), "garbage"),
    "JSON of another kind": (say({"answer": 42}), "garbage"),
    "a row that is no list": (say({"result": [{"id": "a"}]}), "garbage"),
    "a document that is no object": (say({"result": [["text"]]}), "garbage"),
    "a document without text": (say({"result": [[{"id": "a"}]]}), "garbage"),
    "a NaN score": (say({"result": [[{"document": {"id": "a", "text": "x"}, "score": float("nan")}]]}), "garbage"),
    "a score past all floats": (
        say('{"result": [[{"id": "a", "text": "x", "score": 1' + "0" * 400 + "}]]}"),
        "garbage",
    ),
    "a score in words": (say({"result": [[{"id": "a", "text": "x", "score": "high"}]]}), "garbage"),
    "no row": (say({"result": []}), "garbage"),
    "too many rows": (say({"result": [[], []]}), "garbage"),
    "a huge body": (say(b" " * BIG), "oversize"),
    "an endless body": (drip(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536, pause=0), "oversize"),
    "a gzip bomb": (say(gzip.compress(bytes(BIG)), headers="Content-Encoding: gzip\r\n"), "garbage"),
    "endless headers": (drip(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 65536 + b"\r\n", pause=0), "transport"),
}
"""What a server does -> the kind of the RetrieverError that it becomes."""
