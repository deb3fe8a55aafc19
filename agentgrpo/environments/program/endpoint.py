"""The HTTP server for programs' requests, on the event loop of their episodes.

    POST /episodes/KEY/v1/chat/completions     the policy's answer, streamed if requested
    POST /episodes/KEY/v1/responses            its answer as OpenAI's Responses
    POST /episodes/KEY/v1/messages             its answer as Anthropic's messages
    GET  /episodes/KEY/v1/models               the one model
    POST /episodes/KEY/reward/TOKEN            {"reward": 0.5, ...} or a number

It listens only on loopback and only while an episode is open, and answers only under this machine's own names
(services/gate). A KEY is known to its program and to processes that the program starts; it is invalid after the
episode. The TOKEN is known only to functions. Sampling for a client that has disconnected is stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agentgrpo.core.concurrency import PerLoop, off_loop
from agentgrpo.core.untrusted import read_body
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.dialects import CHAT, DIALECTS, MESSAGES
from agentgrpo.environments.program.exchange import ChatRefused, ProgramDialect
from agentgrpo.environments.program.session import Session
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.retrieval.server.running import IDLE_S, listening, patient, url_of
from agentgrpo.services.gate import Gate, gated

HOST = "127.0.0.1"
LIMITS = RequestLimits(body_bytes=8 * 2**20, head_s=300.0, body_s=300.0)
"""Long limits: programs and engine share a machine, so 500 programs that start at once may wait for more than 10 s."""
GATE = Gate()
MODEL = "policy"
GRACE_S = 0.2


@dataclass(kw_only=True, eq=False)
class _Door:
    """One attempt behind the endpoint."""

    session: Session
    sampling: SamplingParams
    ignored: Collection[str]
    on_reward: Callable[[object], None]
    token: str
    """The secret in the URL for rewards."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The episode's context, to which the calls are attributed."""
    work: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks that are answering requests."""
    stored: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Items that later requests may refer to (see exchange.Stored)."""

    async def close(self) -> None:
        """Cancel all requests and wait for their end."""
        for task in self.work:
            task.cancel()
        await asyncio.gather(*self.work, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeUrls:
    base: str
    """The base URL, ending with /v1."""
    reward: str


class ProgramEndpoint:
    """Serves any number of episodes, in any number of consecutive event loops."""

    def __init__(self) -> None:
        self._servers: PerLoop[_Server] = PerLoop(_Server)

    @asynccontextmanager
    async def open(
        self,
        session: Session,
        *,
        sampling: SamplingParams,
        ignored: Collection[str],
        on_reward: Callable[[object], None],
    ) -> AsyncIterator[EpisodeUrls]:
        """Yield the URLs of an episode, which are valid inside the context. on_reward: raises ValueError for an invalid
        reward. ignored: see exchange.ProgramDialect."""
        server, key, token = self._servers.get(), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        door = _Door(session=session, sampling=sampling, ignored=ignored, on_reward=on_reward, token=token)
        await server.enter(key, door)
        try:
            url = f"{server.url}/episodes/{key}"
            yield EpisodeUrls(base=f"{url}/v1", reward=f"{url}/reward/{token}")
        finally:
            await server.leave(key)

    @asynccontextmanager
    async def serve(self, opened: socket.socket) -> AsyncIterator[None]:
        """Serve a socket that was opened elsewhere, while an episode is open."""
        listener = await self._servers.get().listen(opened)
        try:
            yield
        finally:
            listener.close()


class _Server:
    """The server of one event loop. It listens while an attempt is open."""

    def __init__(self) -> None:
        self._doors: dict[str, _Door] = {}
        self._lock = asyncio.Lock()
        self._listener: asyncio.Server | None = None
        self._state = ServerState()
        self.url = ""
        app = Starlette(
            routes=[
                *(Route(f"/episodes/{{key}}/v1{d.path}", self._asked(d), methods=["POST"]) for d in DIALECTS),
                # Anthropic's client appends /v1 to the base URL itself
                Route(f"/episodes/{{key}}/v1/v1{MESSAGES.path}", self._asked(MESSAGES), methods=["POST"]),
                Route("/episodes/{key}/v1/models", self._models, methods=["GET"]),
                Route("/episodes/{key}/reward/{token}", self._posted(self._reward, CHAT), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _nothing_there},
        )
        self._config = uvicorn.Config(
            gated(app, GATE),
            http=patient(LIMITS, GATE),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=IDLE_S,
        )

    async def enter(self, key: str, door: _Door) -> None:
        async with self._lock:
            if self._listener is None:
                if not self._config.loaded:
                    self._config.load()
                bound = listening(HOST, 0)
                self.url = url_of(bound)
                self._listener = await self.listen(bound)
            self._doors[key] = door

    async def listen(self, opened: socket.socket) -> asyncio.Server:
        loop, make = asyncio.get_running_loop(), cast(type[H11Protocol], self._config.http_protocol_class)
        connect = partial(make, self._config, self._state, {})
        listener = await loop.create_server(connect, sock=opened, backlog=2048, start_serving=False)
        try:
            await listener.start_serving()
        except BaseException:  # including cancellation of the episode
            listener.close()
            raise
        return listener

    async def leave(self, key: str) -> None:
        await self._doors.pop(key).close()
        async with self._lock:
            if not self._doors and self._listener is not None:
                self._listener.close()
                self._listener = None
                await self._disconnect()

    async def _disconnect(self) -> None:
        """Close all connections; clients with a pending answer or error get GRACE_S seconds to receive it."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=GRACE_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)

    def _asked(self, dialect: ProgramDialect) -> Callable[[Request], Awaitable[Response]]:
        async def answer(door: _Door, body: bytes) -> Response:
            try:
                read = partial(dialect.request_of, body, door.sampling, door.ignored, door.stored)
                asked = await off_loop(read, size=len(body))
            except ChatRefused:
                door.session.refuse()
                raise
            answered, created = await door.session.answer(asked), int(time.time())
            document = dialect.document_of(answered, asked, created)
            if asked.items:
                door.stored[document["id"]] = (*asked.items, *document["output"])
                door.stored |= {item["id"]: (item,) for item in document["output"]}
            if asked.stream:
                events = "".join(dialect.events_of(answered, asked, created))
                return Response(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
            return _json(document)

        return self._posted(answer, dialect)

    def _posted(
        self, answer: Callable[[_Door, bytes], Awaitable[Response]], dialect: ProgramDialect
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            door, token = self._doors.get(request.path_params["key"]), request.path_params.get("token")
            if door is None or (token is not None and not secrets.compare_digest(token.encode(), door.token.encode())):
                over = ChatRefused("no such episode, or it is over", status=404, code="episode_not_found")
                return _error(over, dialect)
            try:
                body = await _body(request)
                if request.path_params["key"] not in self._doors:
                    raise ChatRefused("the episode is over", status=404, code="episode_not_found")
                return await _unless_gone(request, door, answer(door, body))
            except ChatRefused as e:
                return _error(e, dialect)

        return handle

    async def _reward(self, door: _Door, body: bytes) -> Response:
        try:
            door.on_reward(await off_loop(partial(read_body, body), size=len(body)))
        except (ValueError, RecursionError) as e:
            raise ChatRefused(f"no reward: {e}") from e
        return _json({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        if request.path_params["key"] not in self._doors:
            return _error(ChatRefused("no such episode, or it is over", status=404, code="episode_not_found"), CHAT)
        card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentgrpo"}
        return _json({"object": "list", "data": [card]})


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(LIMITS.body_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LIMITS.body_bytes:
                    raise ChatRefused(f"a body of more than {LIMITS.body_bytes} bytes", status=413)
    except TimeoutError as e:
        raise ChatRefused(f"no complete body within {LIMITS.body_s:g} s", status=408) from e
    except ClientDisconnect as e:
        raise ChatRefused("the client left before its body was in") from e
    return bytes(body)


async def _unless_gone(request: Request, door: _Door, answer: Awaitable[Response]) -> Response:
    """Return the answer, made in the episode's context; cancelled if the client disconnects or the episode ends."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(_awaited(answer), context=door.context.copy())
    gone = loop.create_task(_gone(request))
    door.work.add(work)
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        if work.cancelled():
            raise ChatRefused("the episode is over", status=404, code="episode_not_found")
        return work.result()
    finally:
        door.work.discard(work)
        work.cancel()
        gone.cancel()


async def _awaited(answer: Awaitable[Response]) -> Response:
    return await answer


async def _gone(request: Request) -> None:
    """Wait for the client to disconnect; its body has been received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _nothing_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    asked = f"{request.method} {path.rpartition('/')[2][:80]}"
    allowed = "POST chat/completions, responses, messages or reward, and GET models"
    refused = ChatRefused(f"{asked}: {error.detail}; allowed are {allowed}", status=error.status_code)
    return _error(refused, next((d for d in DIALECTS if path.endswith(d.path)), CHAT))


def _error(refused: ChatRefused, dialect: ProgramDialect) -> Response:
    return _json(dialect.error_of(refused), refused.status)


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")
