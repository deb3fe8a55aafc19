"""The client of an OpenEnv server: JSON messages over a WebSocket, with one session for each connection.

    GET /schema                                   the JSON schema of actions
    {"type": "reset", "data": {"seed": 7}}        -> {"type": "observation", "data": {observation, reward, done}}
    {"type": "step", "data": {"message": "hi"}}   -> the same
    {"type": "mcp", "data": {... "tools/list"}}   -> {"type": "mcp", "data": {"result": {"tools": [...]}}}

A server holds max_concurrent_envs sessions, 1 by default. It reports that number only when it refuses a session for
lack of room; from then on further episodes wait here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from agentgrpo.core.concurrency import PerLoop, uncounted
from agentgrpo.core.errors import ConfigError, EnvironmentFailure, line_of
from agentgrpo.environments.started import StartedServer, words_of
from agentgrpo.services.client import shown
from agentgrpo.services.secret import Secret

Reply = Mapping[str, Any]
PORT = "{port}"
FULL, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"
_MAX_BYTES = 16 * 2**20
_MAX_SHOWN = 300
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LOG = logging.getLogger(__name__)


class RefusedByServer(Exception):
    """The server rejects an action as invalid."""


class _Full(Exception):
    """The server has no room for a session. `args[0]` is its number of sessions, if reported."""


class EnvServer:
    """url: of a running server. api_key_env: the environment variable with its key; None = no key is sent. command: the
    server to start instead, which must listen on {port}. most: concurrent sessions; None = the server's own limit.
    Raises ConfigError."""

    def __init__(
        self,
        *,
        url: str | None,
        command: str | None,
        api_key_env: str | None,
        most: int | None,
        timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        self._timeout_s = timeout_s
        self._secret = Secret(api_key_env) if api_key_env else None
        if self._secret is not None:
            self._secret.check()
        self._started: StartedServer | None = None
        self._url = (url or "").rstrip("/")
        self._rooms: PerLoop[_Room] = PerLoop(lambda: _Room(most))
        self._schema: Mapping[str, Any] | None = None
        if command is not None:
            if PORT not in command:
                raise ConfigError(
                    f"environment.command={command}: it names no port; write {PORT} in place of the port to listen on, "
                    "as in 'python -m my_env.server.app --port {port}'"
                )
            words = words_of(command, "environment.command")

            def argv() -> list[str]:
                port = _free_port()
                self._url = f"http://127.0.0.1:{port}"
                return [word.replace(PORT, str(port)) for word in words]

            self._started = StartedServer(argv, shown=command, is_up=self._is_up, timeout_s=start_timeout_s)

    @property
    def shown(self) -> str:
        return f"OpenEnv server {shown(self._url)}"

    async def action_schema(self) -> Mapping[str, Any]:
        """Raises EnvironmentFailure."""
        if self._schema is None:
            await self._ready()
            try:
                said = await asyncio.to_thread(self._got, "/schema", self._timeout_s)
                self._schema = json.loads(said)["action"]
            except (OSError, ValueError, KeyError, TypeError) as e:
                raise EnvironmentFailure(
                    f"{self.shown} does not say what its actions are (GET /schema): {_one_line(e)}; start it, or "
                    "correct environment.url",
                    kind="server",
                ) from e
        return self._schema

    async def session(self, reset: Mapping[str, Any]) -> tuple[ServerSession, Reply]:
        """Open and reset a session; return it with its first observation. Waits until the server has room, which does
        not count as the episode's time. Raises EnvironmentFailure."""
        await self._ready()
        room, pause, left = self._rooms.get(), _PAUSE_S, self._timeout_s
        while left > 0:
            with uncounted():
                await room.enter()
            session = ServerSession(self, room)
            try:
                return session, await session.begin(self._ws_url, reset)
            except _Full as e:
                room.learn(e.args[0], self.shown)
                await session.close()
            except BaseException:
                await session.close()
                raise
            with uncounted():  # a closed session may still take up room
                await asyncio.sleep(pause)
            left, pause = left - pause, min(2 * pause, _LONGEST_PAUSE_S)
        raise EnvironmentFailure(
            f"{self.shown} is full with other clients' sessions; raise max_concurrent_envs where it is made",
            kind="server",
        )

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request."""
        return {} if self._secret is None else self._secret.headers()

    @property
    def is_ours(self) -> bool:
        """Whether this run started the server on this machine; then no proxy is used."""
        return self._started is not None

    async def close(self) -> None:
        if self._started is not None:
            await self._started.close()

    async def _ready(self) -> None:
        if self._started is not None:
            await self._started.ready()

    async def _is_up(self) -> bool:
        try:
            await asyncio.to_thread(self._got, "/health", 1.0)
        except (OSError, ValueError):
            return False
        return True

    def _got(self, path: str, timeout_s: float) -> bytes:
        """Raises OSError, also for an HTTP error status."""
        proxies = urllib.request.ProxyHandler({} if self.is_ours else None)
        try:
            with urllib.request.build_opener(proxies).open(self._request(path), timeout=timeout_s) as answer:
                body: bytes = answer.read(_MAX_BYTES)
                return body
        except HTTPError as e:
            e.close()
            raise

    def _request(self, path: str) -> urllib.request.Request:
        """Return a GET request for a path below the URL, with the URL's query. The URL's login becomes a header,
        because urllib would take it for part of the host."""
        parts = urlsplit(self._url)
        login, at, host = parts.netloc.rpartition("@")
        basic = {"Authorization": f"Basic {b64encode(unquote(login).encode()).decode()}"} if at else {}
        request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, path=_below(parts.path, path))))
        for name, value in (basic | {**self.headers}).items():
            request.add_unredirected_header(name, value)
        return request

    @property
    def _ws_url(self) -> str:
        parts = urlsplit(self._url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        return urlunsplit(parts._replace(scheme=scheme, path=_below(parts.path, "/ws")))


class ServerSession:
    """The session of one attempt."""

    def __init__(self, server: EnvServer, room: _Room) -> None:
        self._server, self._room = server, room
        self._socket: ClientConnection | None = None
        self._is_open = True

    async def begin(self, url: str, reset: Mapping[str, Any]) -> Reply:
        """Connect and reset. Raises _Full and EnvironmentFailure."""
        try:
            self._socket = await connect(
                url,
                additional_headers=self._server.headers,
                max_size=_MAX_BYTES,
                proxy=None if self._server.is_ours else True,
                open_timeout=self._server.timeout_s,
                ping_interval=None,  # a server that is computing need not answer these
            )
        except (OSError, WebSocketException) as e:
            raise EnvironmentFailure(f"{self._server.shown}: {_one_line(e)}", kind="transport") from e
        return await self._ask({"type": "reset", "data": dict(reset)})

    async def step(self, action: Mapping[str, Any]) -> Reply:
        """Raises RefusedByServer for an action that the server rejects, EnvironmentFailure for any other failure."""
        return await self._ask({"type": "step", "data": dict(action)})

    async def tools(self) -> list[Mapping[str, Any]]:
        """Return the tools that MCP lists: name, description, inputSchema."""
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        said = await self._ask({"type": "mcp", "data": rpc})
        listed: list[Mapping[str, Any]] = (said.get("result") or {}).get("tools") or []
        return listed

    async def close(self) -> None:
        """Close the session, however the attempt ended."""
        if self._is_open:
            self._is_open = False
            try:
                if self._socket is not None:
                    with suppress(OSError, WebSocketException):
                        await self._socket.send(json.dumps({"type": "close"}))
                        await self._socket.close()
            finally:
                await self._room.leave()

    async def _ask(self, message: Mapping[str, Any]) -> Reply:
        assert self._socket is not None
        shown, within = self._server.shown, self._server.timeout_s
        try:
            async with asyncio.timeout(within):
                with suppress(ConnectionClosed):  # an earlier message may give the reason
                    await self._socket.send(json.dumps(message, default=str))
                said = json.loads(await self._socket.recv())
            kind, data = said["type"], said["data"]
        except TimeoutError as e:
            raise EnvironmentFailure(
                f"{shown}: no answer to {message['type']} within {within:g} s; raise environment.timeout_s",
                kind="timeout",
            ) from e
        except (OSError, WebSocketException) as e:
            raise EnvironmentFailure(f"{shown}: {_one_line(e)}", kind="transport") from e
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise EnvironmentFailure(f"{shown} sent an invalid OpenEnv message: {_one_line(e)}", kind="shape") from e
        if not isinstance(data, Mapping):
            raise EnvironmentFailure(f"{shown} sent an invalid OpenEnv message: {str(data)[:80]!r}", kind="shape")
        if kind != "error":
            return data
        if data.get("code") == FULL:
            raise _Full(data.get("max_sessions"))
        why = _complaints(data)
        if data.get("code") == INVALID and message["type"] == "step":
            raise RefusedByServer(why)
        raise EnvironmentFailure(f"{shown}: {message['type']}: {data.get('code')}: {why}", kind="environment")


class _Room:
    """The episodes of one event loop that have a session or wait for one."""

    def __init__(self, most: int | None) -> None:
        self._most, self._inside = most, 0
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._most is None or self._inside < self._most)
            self._inside += 1

    async def leave(self) -> None:
        async with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def learn(self, most: object, shown: str) -> None:
        if self._most is None and isinstance(most, int) and most > 0:
            self._most = most
            _LOG.warning(
                "%s allows %d session%s at once, so episodes wait for each other; raise max_concurrent_envs where it "
                "is made, with SUPPORTS_CONCURRENT_SESSIONS, or set environment.max_sessions=%d",
                shown,
                most,
                "" if most == 1 else "s",
                most,
            )


def _below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}{name}"


def _complaints(data: Mapping[str, Any]) -> str:
    """Return the error message of the server, from pydantic or from another exception."""
    errors = data.get("errors")
    if isinstance(errors, list) and all(isinstance(e, Mapping) for e in errors):
        said = "; ".join(f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg')}" for e in errors)
    else:
        said = str(data.get("message"))
    return " ".join(said.split())[:_MAX_SHOWN]


def _one_line(error: BaseException) -> str:
    return line_of(error)[:_MAX_SHOWN]


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
