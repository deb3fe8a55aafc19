"""A server in this process, from a bound port to the last answer after a signal."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from agentgrpo.errors import ConfigError
from agentgrpo.retrievers.server.connections import patient
from agentgrpo.retrievers.server.questions import Limits

SIGNALS = (signal.SIGINT, signal.SIGTERM)
IDLE_S = 75
"""Until a connection without a request is closed: longer than clients keep one, so that it is they who close it."""


def listening(host: str, port: int) -> socket.socket:
    """Bound, so that no other process can take the port from here on. Port 0 = any that is free. Raises ConfigError."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}; allowed are 1 to 65535, and 0 for one that is free")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as e:
        raise ConfigError(
            f"--host {host}: {getattr(e, 'strerror', None) or e}; allowed are an address or a name of this machine, "
            "0.0.0.0 for all of them, and 127.0.0.1 for this machine alone"
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
    app: Any, bound: socket.socket, *, grace_s: float, ready: Callable[[], None], limits: Limits | None = None
) -> None:
    """Answer until SIGINT or SIGTERM comes, then finish what was asked within `grace_s` seconds. `ready` is called when
    requests are taken. A second signal ends the process at once (exit code 130)."""
    config = uvicorn.Config(
        app,
        http=patient(limits or Limits()),
        log_config=None,
        access_log=False,  # a line per request is what slows a server down that answers thousands a second
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    await _Server(config, ready).serve(sockets=[bound])


class _Server(uvicorn.Server):
    """uvicorn's, but for its signals: it would raise them again when all is done, as if it had not ended by itself."""

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
