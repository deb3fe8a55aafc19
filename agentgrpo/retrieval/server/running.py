"""Runs a server in this process, from binding its port to the last answer after a signal. services/gate admits
clients."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.config import HTTPProtocolType
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentgrpo.core.errors import ConfigError
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.services.gate import AsgiApp, Gate, gated, refusal_of

# --- Slow clients: no connection stays open forever, and no client blocks another.
#
#     no request, or no complete head            closed after head_s
#     no complete body                           408 after body_s (app)
#     the maximum number of connections          the oldest that waits for its client is closed for a new one
#
# uvicorn's own limit on connections would count slow clients too, and turn all others away.

FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def patient(limits: RequestLimits, gate: Gate) -> HTTPProtocolType:
    """The `http` class of a uvicorn.Config whose application is behind `gate`."""
    return cast(HTTPProtocolType, partial(_Connection, limits=limits, gate=gate, opened={}))


class _Connection(H11Protocol):
    """opened: all connections of a server, the oldest first."""

    def __init__(
        self, *args: Any, limits: RequestLimits, gate: Gate, opened: dict[_Connection, None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._gate, self._opened = limits, gate, opened
        self._late: asyncio.TimerHandle | None = None

    @property
    def _is_answered(self) -> bool:
        """True if a request's head has arrived and its answer is not complete; its body may still be missing."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes(self) -> bool:
        """True if the server is waiting for the client."""
        return not self._is_answered or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self._opened) >= self._limits.connections:
            oldest = next((connection for connection in self._opened if connection._owes), None)
            if oldest is None:
                transport.write(FULL)
                transport.close()
                return
            oldest._end()
        self._opened[self] = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        if not self._is_answered:
            self._expect()
        super().data_received(data)
        if self._is_answered:
            self._expect_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """Treat a handshake that the gate refuses like an ordinary request."""
        handshake = {**self.scope, "type": "websocket"}
        return bool(super()._should_upgrade()) and refusal_of(self._gate, handshake) is None

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._leave()  # the connection lives on as a WebSocket, under another protocol
        super().handle_websocket_upgrade(event)
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):  # it would wait forever
            self.send_400_response("Headers longer than a WebSocket may have.")

    def _leave(self) -> None:
        self._opened.pop(self, None)
        self._expect_no_more()

    def _expect(self) -> None:
        """Start the timeout for a complete request head."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._limits.head_s, self._end)

    def _expect_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._opened.pop(self, None)
        self.transport.abort()


SIGNALS = (signal.SIGINT, signal.SIGTERM)
IDLE_S = 75
"""Seconds until an idle connection is closed: longer than clients keep one, so that the client closes it first."""


def listening(host: str, port: int) -> socket.socket:
    """A bound socket, so that no other process can take the port. Port 0 = any free port. Raises ConfigError."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}; allowed are 0 (any free port) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as e:
        raise ConfigError(
            f"--host {host}: {getattr(e, 'strerror', None) or e}; give an address or a name of this machine, "
            "0.0.0.0 for all its addresses, or 127.0.0.1 for local clients only"
        ) from e
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as e:
        bound.close()
        raise ConfigError(f"--host {host} --port {port}: {_cannot_listen(e, port)}") from e
    return bound


def _cannot_listen(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"something listens there already; stop it, or take another: --port {min(port + 1, 65535)} (0 = any)"
    if error.errno == errno.EACCES:
        return "this user may not listen there; take a port of 1024 or more"
    if error.errno == errno.EADDRNOTAVAIL:
        return "that is no address of this machine; 0.0.0.0 means all of its own, 127.0.0.1 itself alone"
    return f"{error.strerror}; take another address"


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: AsgiApp,
    bound: socket.socket,
    *,
    gate: Gate,
    grace_s: float,
    ready: Callable[[], None],
    limits: RequestLimits,
    websockets: bool = False,
) -> None:
    """Serve clients that `gate` admits until SIGINT or SIGTERM, then finish open requests within `grace_s` seconds.
    `ready` is called once requests are accepted. A second signal ends the process at once (exit code 130). websockets:
    accept WebSocket handshakes too, with messages of at most limits.body_bytes."""
    config = uvicorn.Config(
        gated(app, gate),
        http=patient(limits, gate),
        log_config=None,
        access_log=False,  # a log line per request would slow down a server of thousands of requests a second
        lifespan="off",
        ws="auto" if websockets else "none",
        ws_max_size=limits.body_bytes,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    await _Server(config, ready).serve(sockets=[bound])


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which would raise the signals again after an orderly end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(130)
        self.should_exit = True
