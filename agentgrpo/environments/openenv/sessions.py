"""Limits on slow WebSocket clients: no client keeps a session for ever, and a rejected client learns why.

    no message comes within idle_s                 closed (1008) with that reason
    an answer is not taken within idle_s           dropped: its session is free for another client
    the session cannot begin or continue           closed (1013 if the server is full, else 1011), with the reason
                                                   in OpenEnv's last message
    a body has more than body_bytes                its request fails (uvicorn holds WebSocket messages to their size)

Pings and fragments do not count as messages.
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
"""OpenEnv's error code that closes a connection -> code of the close frame."""
_REASON_BYTES = 123
"""Most bytes of the reason in a close frame."""


def held_to(app: AsgiApp, *, idle_s: float, body_bytes: int) -> AsgiApp:
    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            link = _Link(receive, send, idle_s)
            await app(scope, link.receive, link.send)
        else:
            await app(scope, _bounded(receive, body_bytes), send)

    return asked


def _bounded(receive: Receive, body_bytes: int) -> Receive:
    """Report a client to its application as disconnected if its body is too long."""
    left = body_bytes

    async def heard() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return heard


class _Link:
    """One WebSocket, seen from its application."""

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
    """Return the code and reason of the close after `text`, if `text` is an error that ends a session; else {}."""
    said = json.loads(text) if any(code in text for code in ERRORS) else {}
    if said.get("type") != "error" or said["data"].get("code") not in ERRORS:
        return {}
    reason = said["data"]["message"].encode()[:_REASON_BYTES].decode(errors="ignore")
    return {"code": ERRORS[said["data"]["code"]], "reason": reason}
