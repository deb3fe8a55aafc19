"""Real WebSockets to a server of ours: who is let in, how long a silent client is kept, and what it is told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agentgrpo.environments.openenv.sessions import held_to
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.retrieval.server.running import listening, serve, url_of
from agentgrpo.services.gate import Gate, Receive, Scope, Send

websockets = pytest.importorskip("websockets")
FULL = (
    '{"type":"error","data":{"message":"Server at capacity: 2/2 sessions active.","code":"CAPACITY_REACHED",'
    '"active_sessions":2,"max_sessions":2}}'
)
BROKEN = '{"type":"error","data":{"message":"%s","code":"SESSION_ERROR"}}' % ("é" * 100)
LIMITS = RequestLimits(body_bytes=1000, head_s=0.5, connections=50)


class Echo:
    """As OpenEnv's server is: a session for each connection, at most two, and an error before the third is closed.
    "much" is answered with 10 GB."""

    def __init__(self) -> None:
        self.sessions = 0
        self.bodies: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._body(receive, send)
            return
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        if self.sessions == 2:
            await send({"type": "websocket.send", "text": FULL})
            await send({"type": "websocket.close"})
            return
        self.sessions += 1
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                text = message["text"]
                if text == "bye":
                    break
                if text == "broken":
                    await send({"type": "websocket.send", "text": BROKEN})
                    break
                for _ in range(10_000 if text == "much" else 1):
                    await send({"type": "websocket.send", "text": "x" * 10**6 if text == "much" else text})
            await send({"type": "websocket.close"})
        finally:
            self.sessions -= 1

    async def _body(self, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        self.bodies.append(size if message["type"] == "http.request" else -1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(*, idle_s: float = 30.0, gate: Gate | None = None) -> AsyncIterator[tuple[str, Echo]]:
    echo, ready = Echo(), asyncio.Event()
    app = held_to(echo, idle_s=idle_s, body_bytes=LIMITS.body_bytes)
    with listening("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(
            serve(app, bound, gate=gate or Gate(), limits=LIMITS, grace_s=1, ready=ready.set, websockets=True)
        )
        await ready.wait()
        try:
            yield url_of(bound).replace("http", "ws"), echo
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await serving


async def closing(connection: Any) -> tuple[int, str]:
    """The code and the reason of the server's close frame, once it has come."""
    with suppress(websockets.ConnectionClosed):
        while True:
            await connection.recv()
    return connection.close_code, connection.close_reason


async def refused(url: str, **given: Any) -> tuple[int, str]:
    """The status and the reason of a handshake that is turned down."""
    with pytest.raises(websockets.InvalidStatus) as e:
        await websockets.connect(url, **given)
    response = e.value.response
    return response.status_code, response.body.decode()


async def handshake(url: str, *lines: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The first line of the answer to a handshake with these lines as its Host, and the connection."""
    host, port = url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ("GET /ws HTTP/1.1", *lines, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    writer.write("\r\n".join([*head, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", ""]).encode())
    return await reader.readline(), reader, writer


async def status_of(url: str, *lines: str) -> str:
    line, _, writer = await handshake(url, *lines)
    writer.close()
    return line.split()[1].decode()


async def _becomes(holds: Callable[[], bool]) -> bool:
    """Whether it does within a minute."""
    for _ in range(3000):
        if holds():
            return True
        await asyncio.sleep(0.02)
    return False


# --- who is let in


async def test_pages_of_other_sites_get_no_session(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (url, echo):
        port = url.rpartition(":")[2]
        foreign = ("http://evil.example", "null", "http://localhost:1", f"http://evil.example:{port}")
        for origin in foreign:
            reason = f'{{"error": "Origin {origin!a} is no page of this server; ask it as localhost"}}'
            assert await refused(url, origin=origin) == (403, reason)
        for host in (
            "evil.example",
            f"evil.example:{port}",
            f"127.0.0.1.evil.example:{port}",
            "[::1%lo]",
            "x@127.0.0.1",
        ):
            assert await status_of(url, f"Host: {host}") == "403"
        assert await status_of(url, "Host: localhost", "Host: evil.example") == "400"
        assert await status_of(url, "X-Forwarded-Host: localhost") == "400"
        for origin in (None, f"http://localhost:{port}", f"http://127.0.0.1:{port}"):
            async with websockets.connect(url, origin=origin) as connection:
                await connection.send("hello")
                assert await connection.recv() == "hello"
        assert echo.sessions <= 1  # the last one may not have heard that its client left
    assert [record.getMessage() for record in caplog.records if "handshake" in record.getMessage()] == []


async def test_a_key_is_asked_for_at_the_handshake() -> None:
    async with served(gate=Gate(key="k-1")) as (url, _):
        asks = (401, '{"error": "this server has a key; send it as Authorization: Bearer KEY"}')
        assert await refused(url) == asks
        assert await refused(f"{url}/?api_key=k-2") == asks
        assert await refused(url, additional_headers={"Authorization": "Bearer k-2"}) == asks
        with_key = [
            websockets.connect(url, additional_headers={"Authorization": "Bearer k-1"}),
            websockets.connect(f"{url}/?api_key=k-1"),
            websockets.connect(url.replace("//", "//any:k-1@")),
        ]
        for opening in with_key:
            async with opening as connection:
                await connection.send("hello")
                assert await connection.recv() == "hello"
        assert await refused(f"{url}/?api_key=k-1", origin="http://evil.example") == (
            403,
            '{"error": "Origin \'http://evil.example\' is no page of this server; ask it as localhost"}',
        )


# --- how long


async def test_silent_clients_keep_nobody_out() -> None:
    async with served(idle_s=0.5) as (url, echo):
        silent = [await websockets.connect(url) for _ in range(2)]
        assert await closing(await websockets.connect(url)) == (1013, "Server at capacity: 2/2 sessions active.")
        why = (1008, "no message within 0.5 s; connect again, or serve it with a longer --idle-s")
        assert [await closing(connection) for connection in silent] == [why, why]
        assert echo.sessions == 0
        async with websockets.connect(url) as connection:
            for _ in range(4):  # longer than idle_s, together
                await asyncio.sleep(0.2)
                await connection.send("still here")
                assert await connection.recv() == "still here"
            await connection.send('{"type":"observation","data":{"said":"SESSION_ERROR"}}')  # words of a policy
            await connection.send("bye")
            assert await closing(connection) == (1000, "")
        broken = await websockets.connect(url)
        await broken.send("broken")
        assert await closing(broken) == (1011, "é" * 61)


def frame(opcode: int, payload: bytes, *, is_last: bool) -> bytes:
    """Masked with zeros."""
    assert len(payload) < 126
    return bytes([opcode | (0x80 if is_last else 0), 0x80 | len(payload)]) + bytes(4) + payload


@pytest.mark.parametrize(
    "dripped",
    [
        pytest.param(frame(0x9, b"p", is_last=True), id="pings"),
        pytest.param(frame(0xA, b"p", is_last=True), id="pongs"),
        pytest.param(frame(0x0, b"", is_last=False), id="parts of a message"),
    ],
)
async def test_a_message_that_never_ends_is_none(dripped: bytes) -> None:
    async with served(idle_s=0.5) as (url, echo):
        line, _, writer = await handshake(url, "Host: localhost")
        assert line.startswith(b"HTTP/1.1 101 ")
        writer.write(frame(0x1, b"", is_last=False))
        assert await _becomes(lambda: echo.sessions == 1)

        def goes_on() -> bool:
            writer.write(dripped)
            return echo.sessions == 0

        assert await _becomes(goes_on)
        writer.transport.abort()


async def test_a_client_that_reads_nothing_loses_its_session() -> None:
    async with served(idle_s=0.5) as (url, echo):
        line, _, writer = await handshake(url, "Host: localhost")
        assert line.startswith(b"HTTP/1.1 101 ")
        writer.write(frame(0x1, b"much", is_last=True))
        assert await _becomes(lambda: echo.sessions == 1)
        assert await _becomes(lambda: echo.sessions == 0)
        writer.transport.abort()


async def test_a_handshake_that_is_too_long_is_ended() -> None:
    """uvicorn hands it on to a protocol that reads no line of more than 8 KiB, and keeps the connection."""
    async with served() as (url, _):
        for lines in ([f"X: {'a' * 9000}"], [f"X-{i}: a" for i in range(200)]):
            line, reader, writer = await handshake(url, "Host: localhost", *lines)
            assert line.startswith(b"HTTP/1.1 400 ")
            assert b"Headers longer than a WebSocket may have." in await reader.read()
            writer.close()


# --- how much


async def test_messages_and_bodies_have_a_size() -> None:
    async with served() as (url, echo):
        connection = await websockets.connect(url)
        await connection.send("x" * 1000)
        assert await connection.recv() == "x" * 1000
        await connection.send("x" * 1001)
        assert (await closing(connection))[0] == 1009
        connection = await websockets.connect(url)
        await connection.send(["x" * 100 for _ in range(11)])
        assert (await closing(connection))[0] == 1009
        for size in (1000, 1001, 10**6):
            host, port = url.removeprefix("ws://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert echo.bodies == [1000, -1, -1]


async def test_half_a_handshake_is_ended_and_a_whole_one_lives_on() -> None:
    """head_s bounds a handshake, and not the connection that comes of it."""
    async with served() as (url, _):
        live = await websockets.connect(url)
        host, port = url.removeprefix("ws://").split(":")
        halves: Sequence[Any] = [await asyncio.open_connection(host, int(port)) for _ in range(80)]
        for _, writer in halves:
            writer.write(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nX-Slow: ")
        ended = await asyncio.gather(*(reader.read() for reader, _ in halves), return_exceptions=True)
        assert all(told == b"" or isinstance(told, ConnectionError) for told in ended)
        for _, writer in halves:
            writer.transport.abort()
        await live.send("hello")
        assert await live.recv() == "hello"
        async with websockets.connect(url) as another:
            await another.send("hello")
            assert await another.recv() == "hello"
