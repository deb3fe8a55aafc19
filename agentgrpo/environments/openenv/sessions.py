"""WebSockets of clients that take their time: none keeps a session for ever, and who is turned away knows why.

    no message comes within idle_s                 closed (1008) with that reason
    an answer is not taken within idle_s           given up: its session is free for another client
    the session cannot begin, or not go on         closed (1013 where the server is full, else 1011), with the reason
                                                   that OpenEnv's last message says
    a body has more than body_bytes                its request fails (uvicorn holds WebSocket messages to their size)

Pings and parts of a message are no messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from agentgrpo.environments.openenv.server import FULL
from agentgrpo.services.gate import AsgiApp, Receive, Scope, Send

POLICY = 1008
ERRORS = {FULL: 1013, "FACTORY_ERROR": 1011, "SESSION_ERROR": 1011}
"""OpenEnv's codes of errors after which it closes a connection, and those of the close frame."""
_REASON_BYTES = 123
"""Of a close frame, at most."""


def held_to(app: AsgiApp, *, idle_s: float, body_bytes: int) -> AsgiApp:
    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            link = _Link(receive, send, idle_s)
            await app(scope, link.receive, link.send)
        else:
            await app(scope, _bounded(receive, body_bytes), send)

    return asked


def _bounded(receive: Receive, body_bytes: int) -> Receive:
    """A client whose body is too long has left, as far as its application knows."""
    left = body_bytes

    async def heard() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return heard


class _Link:
    """One WebSocket, as its application sees it."""

    def __init__(self, receive: Receive, send: Send, idle_s: float) -> None:
        self._receive, self._send, self._idle_s = receive, send, idle_s
        self._is_over = False
        self._last = ""

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s):
                    return await self._receive()
            reason = f"no message within {self._idle_s:g} s; connect again, or serve it with a longer --idle-s"
            await self.send({"type": "websocket.close", "code": POLICY, "reason": reason})
        return {"type": "websocket.disconnect", "code": POLICY}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self._is_over:
            return
        if message["type"] == "websocket.close":
            self._is_over = True
            message = {**message, **_why(self._last)}
        self._last = message.get("text") or ""
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send(message)
        except OSError:  # the client has gone, or takes nothing (TimeoutError)
            self._is_over = True


def _why(text: str) -> dict[str, Any]:
    """The code and the reason of the close that follows `text`, where `text` is an error that ends a session."""
    said = json.loads(text) if any(code in text for code in ERRORS) else {}
    if said.get("type") != "error" or said["data"].get("code") not in ERRORS:
        return {}
    reason = said["data"]["message"].encode()[:_REASON_BYTES].decode(errors="ignore")
    return {"code": ERRORS[said["data"]["code"]], "reason": reason}
