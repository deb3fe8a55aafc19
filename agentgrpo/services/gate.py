"""Access control for the servers of this package: a request must name the server correctly and bring its key, if any.

A web site can make its visitor's browser send requests to a server on this machine: under the site's own name, which
the site points here (DNS rebinding), or through a WebSocket, which browsers open to any machine. The first request has
a foreign Host, the second a foreign Origin.

    Host      exactly one name of this server: localhost, 127.0.0.1, [::1], --host, --allow-host, the connected address
    Origin    absent, or a name of this server with the port of Host; for a name of --allow-host any port
    the key   if the server has a key: Authorization: Bearer KEY; KEY as the Basic password; ?api_key=KEY of a WebSocket

Browsers can set no header of a WebSocket, and OpenEnv's client can set only Basic. A server that other machines can
reach always has a key. X-Forwarded-Host and similar headers are ignored, because any client can write them.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs

from agentgrpo.core.errors import ConfigError
from agentgrpo.services.client import is_loopback
from agentgrpo.services.secret import Secret

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_AUTHORITY = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(r"https?://([^/]+)", re.IGNORECASE | re.ASCII)
_SHOWN = 80
"""Maximum number of characters of a header in a refusal."""


class NotLetIn(NamedTuple):
    """The answer to a request that is refused before its body is read: an HTTP status, and the reason on one line."""

    status: int
    reason: str


class Authority(NamedTuple):
    """A Host header: the name in the form of `_spelled`, and the port, "" if it has no port."""

    name: str
    port: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Access control of one server. names: the server's names in the form of `_spelled`. guests: names that the
    operator adds, for a proxy in front of the server."""

    names: frozenset[str] = LOOPBACK
    guests: frozenset[str] = frozenset()
    key: str | None = field(default=None, repr=False)
    """The server's key; None = no key is needed."""
    remedy: str = "ask it as localhost"
    """Advice for a request under a foreign name."""

    @classmethod
    def at(cls, bound: socket.socket, host: str, *, allow_host: str | None, api_key_env: str | None) -> Gate:
        """Return the gate of a server that listens at `bound`, with --host as `host`. allow_host: further names,
        separated by commas. api_key_env: the environment variable that holds the key. Without it, a server beyond
        loopback gets a new key. Raises ConfigError."""
        address, key = bound.getsockname()[0], None
        if api_key_env is not None:
            Secret(api_key_env).check()
            key = os.environ[api_key_env]
        elif not is_loopback(address):
            key = secrets.token_urlsafe(24)
        here = {socket.gethostname()} if ipaddress.ip_address(address).is_unspecified else set()
        guests = frozenset(_guest(text.strip()) for text in allow_host.split(",")) if allow_host else frozenset()
        names = LOOPBACK | {_spelled(name) for name in {host} | here}
        return cls(names=names, guests=guests, key=key, remedy="start it with --allow-host NAME to add one")

    def refusal(
        self, headers: Sequence[tuple[str, str]], *, target: str, address: str, query_key: str = ""
    ) -> NotLetIn | None:
        """Return the refusal of a request, None if it may be answered. headers: with names in lower case. target: from
        the request line. address: the server's address of the connection. query_key: the key from the query, if the
        query may hold it."""
        if not target.startswith("/"):
            return NotLetIn(403, f"{_quoted(target)} is no path; ask for one, such as /")
        hosts = [value for name, value in headers if name == "host"]
        host = _authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or host.name not in self.names | self.guests | {_spelled(address)}:
            shown = _quoted(", ".join(hosts))
            return NotLetIn(403, f"Host {shown} is no name of this server; {self.remedy}")
        for origin in (value for name, value in headers if name == "origin"):
            match = _ORIGIN.fullmatch(origin)
            page = _authority(match[1]) if match else None
            if page is None or (
                page.name not in self.guests
                and (page.port != host.port or page.name not in self.names | {_spelled(address)})
            ):
                return NotLetIn(403, f"Origin {_quoted(origin)} is no page of this server; {self.remedy}")
        if self.key is not None:
            key = self.key.encode()
            if not any(hmac.compare_digest(offered, key) for offered in _offered(headers, query_key)):
                return NotLetIn(401, "this server has a key; send it as Authorization: Bearer KEY")
        return None


def _authority(text: str) -> Authority | None:
    match = _AUTHORITY.fullmatch(text)
    return Authority(_spelled(match[1]), match[2] or "") if match else None


def _spelled(host: str) -> str:
    """Return a host for comparison: in lower case, without the root's dot; IPv6 short, in brackets, without a zone."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
    return f"[{address}]" if mapped is None else str(mapped)


def _guest(text: str) -> str:
    authority = _authority(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
    if authority is None or authority.port:
        raise ConfigError(
            f"--allow-host {text!r}; names and addresses are allowed, without scheme, port or *: train.example,10.0.0.5"
        )
    return authority.name


def _offered(headers: Sequence[tuple[str, str]], query_key: str) -> Iterator[bytes]:
    yield query_key.encode()
    for value in (value for name, value in headers if name == "authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            yield credentials.strip().encode()
        elif scheme.lower() == "basic":
            try:
                yield base64.b64decode(credentials).partition(b":")[2]
            except ValueError:
                continue


def _quoted(text: str) -> str:
    return ascii(text[:_SHOWN])


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def gated(app: AsgiApp, gate: Gate) -> AsgiApp:
    """Wrap `app` so that requests which `gate` refuses get {"error": reason}, WebSockets in place of the handshake."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal_of(gate, scope)
        if refused is None:
            await app(scope, receive, send)
            return
        kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": f"{kind}.start", "status": refused.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": json.dumps({"error": refused.reason}).encode()})

    return asked


def refusal_of(gate: Gate, scope: Scope) -> NotLetIn | None:
    """Return `Gate.refusal` for the request in `scope`."""
    is_socket = scope["type"] == "websocket"
    query = parse_qs(scope["query_string"].decode("latin-1")) if is_socket and gate.key is not None else {}
    return gate.refusal(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
        target=scope["raw_path"].decode("latin-1"),
        address=scope["server"][0],
        query_key=query.get("api_key", [""])[0],
    )
