"""Connections of clients that take their time: none is held for ever, and none in the way of another.

    no request comes, or not all of its head   closed after head_s
    its body does not come                     408 after body_s (app)
    there are as many as there may be          the oldest that has nothing to be answered is closed for a new one

uvicorn's own limit on connections would count the slow ones, too, and turn away everybody else."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.config import HTTPProtocolType
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentgrpo.retrievers.server.questions import Limits

FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def patient(limits: Limits) -> HTTPProtocolType:
    """The `http` of a uvicorn.Config."""
    return cast(HTTPProtocolType, partial(_Connection, limits=limits, opened={}))


class _Connection(H11Protocol):
    """opened: all of a server's, the oldest first."""

    def __init__(self, *args: Any, limits: Limits, opened: dict[_Connection, None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._opened = limits, opened
        self._late: asyncio.TimerHandle | None = None

    @property
    def _is_answered(self) -> bool:
        """A request is here, but perhaps for its body."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes(self) -> bool:
        """It is for the client to go on."""
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
        self._opened.pop(self, None)
        self._expect_no_more()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """A whole head, from now on."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._limits.head_s, self._end)

    def _expect_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._opened.pop(self, None)
        self.transport.abort()
