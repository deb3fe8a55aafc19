"""A client for one URL that answers in JSON. A call ends in time, with a result or a typed error, whatever the server
does.

httpx's own timeouts are per read, so a slow drip outlives them. They are off, and one deadline spans all attempts and
the pauses between them. Compressed bodies are refused: a few kilobytes of gzip can be gigabytes of text."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache, partial
from typing import Any, TypeVar

import httpx

from agentgrpo.core.concurrency import PerLoop
from agentgrpo.core.errors import ConfigError, EpisodeError, line_of
from agentgrpo.core.secrets import masked
from agentgrpo.services.asking import count
from agentgrpo.services.rate import Grant, RateLimiter, pause_s, retry_after_s
from agentgrpo.services.secret import Secret

# --- Connections of one event loop to one server: one per request, or kept for later requests.

REQUESTS_PER_POOL = 8
"""Concurrent requests of one pool. A pool of httpx scans all its connections for each request; with 128 connections it
does little else."""
_tls = cache(httpx.create_ssl_context)
"""Cached: reading the certificates takes longer than the rest of making a pool."""


class _Pool:
    """A client of httpx, and the number of its live requests."""

    def __init__(self, *, keep_alive_s: float, trust_env: bool) -> None:
        self.client = httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=None if keep_alive_s else 0, keepalive_expiry=keep_alive_s),
            follow_redirects=False,
            trust_env=trust_env,
            verify=_tls(trust_env=trust_env),
        )
        self.live = 0


class Connections:
    """Connections to one server. keep_alive_s: seconds that a connection may idle before it is closed; 0 = a connection
    per request.

    Kept connections end with their event loop at the latest: an asynchronous generator of the loop closes them."""

    def __init__(self, *, keep_alive_s: float, trust_env: bool) -> None:
        self._keep_alive_s, self._trust_env = keep_alive_s, trust_env
        self._pools: list[_Pool] = []
        self._guard: AsyncGenerator[None] | None = None

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()
        await self._close_pools()

    @asynccontextmanager
    async def stream(self, make: Callable[[], httpx.Request], counts: Counter[str]) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the response after its head; counts `stale`. Raises httpx.HTTPError and OSError."""
        pool = self._free()
        pool.live += 1
        try:
            response = await self._send(pool.client, make, counts)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            pool.live -= 1

    def _free(self) -> _Pool:
        """Return the first pool with room, so that kept connections are used again before others are opened."""
        for pool in self._pools:
            if pool.live < REQUESTS_PER_POOL:
                return pool
        self._pools.append(_Pool(keep_alive_s=self._keep_alive_s, trust_env=self._trust_env))
        return self._pools[-1]

    async def _send(
        self, client: httpx.AsyncClient, make: Callable[[], httpx.Request], counts: Counter[str]
    ) -> httpx.Response:
        if not self._keep_alive_s:
            return await client.send(_made(client, make), stream=True)
        if self._guard is None:
            self._guard = self._until_the_end()
            await anext(self._guard)
        while True:
            is_fresh = False

            async def look(event: str, _: object) -> None:
                nonlocal is_fresh
                is_fresh = is_fresh or event == "connection.connect_tcp.started"

            request = _made(client, make)
            request.extensions["trace"] = look
            try:
                return await client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_fresh:
                    raise
                # The server closed it while it idled. Each turn of this loop removes one such connection from the pool.
                counts["stale"] += 1

    async def _close_pools(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.client.aclose()

    async def _until_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._close_pools()


def _made(client: httpx.AsyncClient, make: Callable[[], httpx.Request]) -> httpx.Request:
    request = make()
    for name, value in client.headers.items():
        request.headers.setdefault(name, value)
    return request


logger = logging.getLogger(__name__)

T = TypeVar("T")
_JSON = "application/json"
PASSING = ("http_500", "transport")
"""Transient kinds of failure: another attempt may succeed."""
DOUBLINGS = 3
"""Maximum number of doublings of the pause after a refusal without Retry-After."""


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call, from its first attempt to its last."""

    seed: str
    tokens: int
    began: float
    deadline: float
    grant: Grant | None = None
    """Grant of its latest turn."""
    is_waiting: bool = True
    """Whether it waits for its turn."""
    is_refused: bool = False
    """Whether its last attempt was refused."""
    pause_s: float = 0.0
    """Pause that this refusal asks for."""
    refusal: str = ""
    """Message of the last refusal."""
    refusals: int = 0
    failures: int = 0


class JsonClient:
    """A client for one JSON endpoint. A call waits for its turn by `rate`, then a deadline covers all its attempts.

    A server that takes no more calls answers 429, or 5xx with a Retry-After. That is no failure: fewer calls are made
    at once (see RateLimiter), and this call is repeated after the Retry-After, or after a pause as below, until
    timeout_s is over. Other 5xx and transport errors, and nothing else, get up to `retries` further attempts, after
    backoff_s * 2^attempt (half of it jitter), each by `rate` again. If an attempt could not start before the deadline,
    the call fails at once. Works in any number of consecutive event loops, with a client for each.

    keep_alive_s: connections that idle no longer than this are used again; 0 = a connection per call. A connection that
    the server closed while it idled is no failure: the request goes out again at once on another connection.

    Failures are raised as `error`, whose `kind` says what failed: timeout, transport, http_3xx, http_4xx, http_429,
    http_500 (any 5xx), oversize, garbage.

    `counts`: requests (attempts), refused (attempts that a full server refused), retries, stale (connections that had
    been closed), and failures by kind."""

    def __init__(
        self,
        *,
        url: str,
        error: type[EpisodeError],
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_response_bytes: int = 2 * 2**20,
        trust_env: bool = True,
        secrets: Sequence[Secret] = (),
        keep_alive_s: float = 0.0,
        rate: RateLimiter | None = None,
        is_json: bool = True,
        is_quiet: bool = False,
        setting: str = "timeout_s",
    ) -> None:
        """rate: limits all attempts. is_json=False: replies are any text, not parsed. is_quiet: failures are raised
        without a warning in the log. setting: the configuration's name of timeout_s."""
        host = host_of(url)
        self.url, self.shown = url, shown(url)
        limits = {"retries": retries, "backoff_s": backoff_s, "keep_alive_s": keep_alive_s}
        above = {"timeout_s": timeout_s, "max_response_bytes": max_response_bytes}
        if min(limits.values()) < 0 or min(above.values()) <= 0:
            given = ", ".join(f"{key}={value}" for key, value in {**above, **limits}.items())
            allowed = ", ".join([*(f"{key} > 0" for key in above), *(f"{key} >= 0" for key in limits)])
            raise ConfigError(f"{self.shown}: {given}; allowed are {allowed}")
        for secret in secrets:
            secret.check()
        self.counts: Counter[str] = Counter()
        self._error = error
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._max_response_bytes = max_response_bytes
        self._trust_env = trust_env and not is_loopback(host)  # no proxy can reach this machine's loopback
        self._secrets = tuple(secrets)
        self._keep_alive_s = keep_alive_s
        self._rate = rate or RateLimiter()
        self._is_json, self._log_level = is_json, logging.DEBUG if is_quiet else logging.WARNING
        self._setting = setting
        self._connections = PerLoop(self._open)

    async def close(self) -> None:
        """Close the running loop's client; a later call opens a new one."""
        connections = self._connections.pop()
        if connections is not None:
            await connections.close()

    async def post(
        self,
        payload: object,
        read: Callable[[Any], T],
        *,
        arrived: float | None = None,
        seed: str | None = None,
        tokens: int = 0,
        used: Callable[[T], int] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> T:
        """Return `read` of the parsed 2xx reply. If `read` raises `error`, that is counted and raised like any failure.

        arrived: the loop time from which timeout_s counts; None = the call's turn by `rate`. seed: the seed of the
        jitter; None = the current request count. tokens: the tokens that the call is expected to use, for `rate`.
        used: the tokens that it has used, by its reply; 0 = not known. begun: called at its turn."""
        call = partial(self._posting, payload)
        return await self._call(call, read, arrived, seed, tokens=tokens, used=used, begun=begun)

    async def get(
        self,
        params: Mapping[str, str],
        read: Callable[[Any], T],
        *,
        arrived: float | None = None,
        seed: str | None = None,
    ) -> T:
        """Like `post`, but by GET: `params` are added to the URL's query."""
        return await self._call(partial(self._getting, params), read, arrived, seed)

    async def _call(
        self,
        make: Callable[[], httpx.Request],
        read: Callable[[Any], T],
        arrived: float | None,
        seed: str | None,
        *,
        tokens: int = 0,
        used: Callable[[T], int] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> T:
        loop = asyncio.get_running_loop()
        seed = f"{self.url} {self.counts['requests'] if seed is None else seed}"
        deadline = math.inf if arrived is None else arrived + self._timeout_s
        call = _Call(seed=seed, tokens=tokens, began=loop.time(), deadline=deadline)
        while True:
            try:
                status, body = await self._in_turn(call, make, begun)
                if not 200 <= status < 300:
                    raise self._error(f"HTTP {status} {self._quote(body, 200)}", kind=_kind(status))
                reply = read(self._parse(body))
                if call.grant is not None and used is not None and (amount := used(reply)):
                    self._rate.settle(call.grant, amount)
                return reply
            except TimeoutError:
                what, kind = ("turn", "http_429") if call.is_waiting else ("complete reply", "timeout")
                error = self._error(f"no {what} within {self._timeout_s:g} s", kind=kind)
            except self._error as e:
                error = e
            if call.is_refused:
                may_pass, pause, call.refusal = True, call.pause_s, str(error)
                self._count_refusal(call.refusal)
            else:
                may_pass = error.kind in PASSING and call.failures < self._retries
                pause = pause_s(seed, call.failures, backoff_s=self._backoff_s)
                call.failures += 1
            if not may_pass or loop.time() + pause >= call.deadline:
                raise self._last(call, error)
            if not call.is_refused:
                self.counts.update((error.kind, "retries"))
            await asyncio.sleep(pause)

    async def _in_turn(
        self, call: _Call, make: Callable[[], httpx.Request], begun: Callable[[], None] | None
    ) -> tuple[int, bytes]:
        """Make one attempt at its turn; returns status and body. Raises TimeoutError at the call's deadline."""
        loop, rate = asyncio.get_running_loop(), self._rate
        call.is_waiting, call.is_refused = True, False
        async with asyncio.timeout_at(call.deadline) as limit, rate.turn(call.tokens, again=call.grant) as grant:
            if call.grant is None and begun is not None:
                begun()
            if call.deadline == math.inf:
                call.began = loop.time()
                call.deadline = call.began + self._timeout_s
                limit.reschedule(call.deadline)
            call.grant, call.is_waiting = grant, False
            status, (asked, date), body = await self._attempt(make)
            call.is_refused = status == 429 or (status >= 500 and retry_after_s(asked, date) is not None)
            if call.is_refused:
                number = min(call.refusals, DOUBLINGS)
                call.pause_s = pause_s(call.seed, number, backoff_s=self._backoff_s, retry_after=asked, date=date)
                call.refusals += 1
                rate.refused(grant, call.pause_s if call.pause_s < self._timeout_s else 0.0)
            elif status < 500:
                rate.answered()
            return status, body

    def _count_refusal(self, refusal: str) -> None:
        count("refused")
        self.counts["refused"] += 1
        if self.counts["refused"] == 1:
            logger.warning("%s: %s; fewer calls go out at once from now on, and this one again", self.shown, refusal)

    def _last(self, call: _Call, error: EpisodeError) -> EpisodeError:
        """Count a call's final failure, and return its error."""
        self.counts[error.kind] += 1
        what = masked(str(error))
        if call.refusals and not call.is_refused:
            what += f"; it has refused {call.refusals} attempts, the last with {call.refusal}"
        if takes_no_more := call.is_refused or call.is_waiting:
            self._rate.give_up(call.began)
            what += "; it takes no more calls"
        if takes_no_more or call.refusals:
            what += f", and {self._setting}={self._timeout_s:g} has a call wait no longer: raise it"
        error = self._error(f"{self.shown}, attempt {call.refusals + call.failures}: {what}", kind=error.kind)
        logger.log(self._log_level, "%s", error)
        return error

    def _open(self) -> Connections:
        return Connections(keep_alive_s=self._keep_alive_s, trust_env=self._trust_env)

    def _posting(self, payload: object) -> httpx.Request:
        fields = self._parameters()
        content = json.dumps({**payload, **fields} if fields and isinstance(payload, dict) else payload).encode()
        return httpx.Request("POST", self.url, content=content, headers={"Content-Type": _JSON, **self._headers()})

    def _getting(self, params: Mapping[str, str]) -> httpx.Request:
        url = httpx.URL(self.url).copy_merge_params({**params, **self._parameters()})
        return httpx.Request("GET", url, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {k: v for secret in self._secrets for k, v in secret.headers().items()}

    def _parameters(self) -> dict[str, str]:
        return {k: v for secret in self._secrets for k, v in secret.parameters().items()}

    async def _attempt(self, make: Callable[[], httpx.Request]) -> tuple[int, tuple[str | None, str | None], bytes]:
        """Return the status, Retry-After and Date, and body of one attempt; only the body's beginning unless 2xx."""
        self.counts["requests"] += 1
        body = bytearray()
        try:
            async with self._connections.get().stream(make, self.counts) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    encoding = response.headers["Content-Encoding"]
                    raise self._error(f"a body encoded as {encoding!r}, not asked for", kind="garbage")
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self._max_response_bytes:
                        raise self._error(f"more than {self._max_response_bytes} bytes", kind="oversize")
                    if not response.is_success:
                        break
                date = response.headers.get("Date") or formatdate(time.time(), usegmt=True)
                return response.status_code, (response.headers.get("Retry-After"), date), bytes(body)
        except (httpx.HTTPError, OSError) as e:
            raise self._error(line_of(e), kind="transport") from e

    def _parse(self, body: bytes) -> Any:
        """Parse a body; nesting and numbers beyond Python's limits are refused too."""
        if not self._is_json:
            return body.decode("latin-1")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as e:
            raise self._error(f"the body is not JSON ({e}): {self._quote(body, 80)}", kind="garbage") from e

    def _quote(self, body: bytes, num_bytes: int) -> str:
        # Masked before it is cut: half a key is a leak too.
        return repr(masked(body.decode("latin-1"))[:num_bytes].encode("latin-1", "replace"))


def shown(url: str) -> str:
    """Return `url` for messages, which end up in files: without user:pass@, even if the password has / or # in it, and
    without the query, which may hold a key. With an @ after the ? the end of the password is unclear, and only the
    scheme is shown."""
    base, _, query = url.partition("?")
    scheme, slashes, rest = base.partition("//") if "//" in base else ("", "", base)
    return f"{scheme}{slashes}" + ("***" if "@" in query else rest.rpartition("@")[2])


def host_of(url: str) -> str:
    """Return the host of an http or https URL from the configuration. Raises ConfigError for anything else."""
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 80) < 65536:
            return parsed.host
    what = f"url={shown(url)!r}; allowed is an http or https URL such as http://localhost:8000/retrieve"
    if url and "://" not in url:  # "localhost:8000" alone parses as a URL with the scheme localhost
        what += "; put http:// before it, or https://"
    elif "@" in url:
        what += "; in a password, which is not shown here, write / as %2F, # as %23 and ? as %3F"
    raise ConfigError(what)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _kind(status: int) -> str:
    if status == 429:
        return "http_429"
    return {3: "http_3xx", 4: "http_4xx", 5: "http_500"}.get(status // 100, "garbage")
