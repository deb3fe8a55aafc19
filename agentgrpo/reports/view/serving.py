"""Serves the page and its blocks to browsers on this machine, for runs that are still running.

It listens on 127.0.0.1 only, is read-only, and accepts only this machine's own host names (services/gate). It does not
protect the page from other users of the same machine.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import sys
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from agentgrpo.core.errors import AgentGrpoError, ConfigError
from agentgrpo.reports.view.page import HtmlPage
from agentgrpo.reports.view.snapshot import Snapshot
from agentgrpo.reports.view.source import on_one_line
from agentgrpo.services.gate import Gate

HOST = "127.0.0.1"
_GATE = Gate()
_LEVEL = 1
"""Level of gzip: low, because transfers within one machine are cheap."""
_WORTH = 1024


class PageServer(ThreadingHTTPServer):
    """Listens from construction on; `serve_forever` answers. port: 0 = any free port. Raises ConfigError if the port is
    not available."""

    daemon_threads = True
    request_queue_size = 2048
    """Backlog of waiting connections; the socketserver default of 5 is fewer than a browser's tabs open at once."""

    def __init__(self, snapshot: Snapshot, page: HtmlPage, *, port: int = 0) -> None:
        self.snapshot, self.page = snapshot, page
        self.markup = page.head + page.tail
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as e:
            why = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be had: {e.strerror}"
            raise ConfigError(f"--port {port} {why}; give another port, or omit --port for a free one") from e

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback on stderr, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "agentgrpo", ""
    timeout = 60.0

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        if (refused := _GATE.refusal(headers, target=self.path, address=HOST)) is not None:
            self._say(HTTPStatus(refused.status), refused.reason)
        elif path == "/":
            tag = hashlib.sha256(self.server.markup).hexdigest()[:16]
            self._send(self.server.markup, "text/html; charset=utf-8", tag)
        elif path.startswith("/block/"):
            self._block(path.removeprefix("/block/"))
        else:
            self._say(HTTPStatus.NOT_FOUND, "there are / and /block/NAME")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True  # an unread body may follow
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are allowed", Allow="GET, HEAD", Connection="close")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_CONNECT = do_TRACE = _refuse

    def _block(self, name: str) -> None:
        known = self.headers.get("If-None-Match", "").removeprefix("W/").strip('"')
        try:
            block = self.server.snapshot.block(name, known=known)
        except (AgentGrpoError, OSError) as e:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, on_one_line(e))
            return
        if block is None:
            self._say(HTTPStatus.NOT_FOUND, f"there is no block {name[:40]!a}")
        else:
            self._send(block.data, "application/json", block.tag)

    def _send(self, data: bytes, kind: str, tag: str) -> None:
        if self.headers.get("If-None-Match", "").removeprefix("W/").strip('"') == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", ETag=f'"{tag}"')
            return
        headers = {"Content-Type": kind, "ETag": f'"{tag}"', "Vary": "Accept-Encoding"}
        if len(data) >= _WORTH and "gzip" in self.headers.get("Accept-Encoding", ""):
            data, headers["Content-Encoding"] = _zipped(data), "gzip"
        self._answer(HTTPStatus.OK, data, **headers)

    def _say(self, status: HTTPStatus, text: str, **headers: str) -> None:
        self._answer(status, f"{text}\n".encode(), **{"Content-Type": "text/plain; charset=utf-8"}, **headers)

    def _answer(self, status: HTTPStatus, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, **_SAFE, "Content-Security-Policy": self.server.page.policy}.items():
            self.send_header(name, value)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal keeps the line with the address."""


_SAFE = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@lru_cache(maxsize=8)
def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0)
