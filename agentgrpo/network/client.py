"""One URL that answers in JSON. A call ends in time, with a result or a typed error, whatever the server does.

httpx's own timeouts are per read, which a slow drip outlives: they are off, and one deadline spans every attempt and
every pause between attempts. Bodies are asked for uncompressed and refused otherwise: a few kilobytes of gzip can be
gigabytes of text."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Any, TypeVar

import httpx

from agentgrpo.concurrency import PerLoop
from agentgrpo.errors import ConfigError, EpisodeError
from agentgrpo.network.connections import Connections
from agentgrpo.network.pauses import pause_s
from agentgrpo.network.secret import Secret

logger = logging.getLogger(__name__)

T = TypeVar("T")
_JSON = "application/json"
PASSING = ("http_429", "http_500", "transport")
"""Kinds of failure that another attempt may not meet."""


class JsonClient:
    """Up to `retries` further attempts follow on 429, 5xx and transport errors, never on anything else, after
    backoff_s * 2^attempt (half of it jitter) or the Retry-After the server asks for; an attempt that could not start
    before the deadline is not waited for. Works in any number of consecutive event loops, with a client for each.

    keep_alive_s: connections that idle no longer than this are used again; 0 = a connection per call. One that the
    server closed while it idled is no failure: the request goes out again at once, on another.

    Failures are raised as `error`, whose `kind` says what failed: timeout, transport, http_3xx, http_4xx, http_429,
    http_500 (any 5xx), oversize, garbage.

    `counts`: requests (attempts), retries, stale (connections that had been closed), and failures by kind."""

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
        busy: Callable[[float], None] | None = None,
        is_json: bool = True,
        is_quiet: bool = False,
    ) -> None:
        """busy: is told for how many seconds the server asks not to be called, where that is less than timeout_s.
        is_json=False: replies are any text, and read as such. is_quiet: failures are raised and not logged too."""
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
        self._trust_env = trust_env and not is_loopback(host)  # no proxy can reach this machine's own loopback
        self._secrets = tuple(secrets)
        self._keep_alive_s = keep_alive_s
        self._busy = busy
        self._is_json, self._log_level = is_json, logging.DEBUG if is_quiet else logging.WARNING
        self._connections = PerLoop(self._open)

    async def close(self) -> None:
        """Ends the running loop's client; the next call would open another."""
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
        admit: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """`read` applied to the parsed reply of a 2xx. What `read` raises as `error` is counted and raised like any
        failure.

        arrived: the loop time from which timeout_s counts; now where it is None. seed: what jitter is a function of;
        the number of requests so far where it is None. admit: awaited before every attempt after the first, for a
        backend that counts them."""
        return await self._call(partial(self._posting, payload), read, arrived, seed, admit)

    async def get(
        self,
        params: Mapping[str, str],
        read: Callable[[Any], T],
        *,
        arrived: float | None = None,
        seed: str | None = None,
        admit: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """The same by GET: `params` are added to the URL's query."""
        return await self._call(partial(self._getting, params), read, arrived, seed, admit)

    async def _call(
        self,
        make: Callable[[], httpx.Request],
        read: Callable[[Any], T],
        arrived: float | None,
        seed: str | None,
        admit: Callable[[], Awaitable[object]] | None,
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = (loop.time() if arrived is None else arrived) + self._timeout_s
        seed = f"{self.url} {self.counts['requests'] if seed is None else seed}"
        attempt = 0
        while True:
            asked: tuple[str | None, str | None] = None, None
            try:
                async with asyncio.timeout_at(deadline):
                    if attempt and admit is not None:
                        await admit()
                    status, asked, body = await self._attempt(make)
                if not 200 <= status < 300:
                    raise self._error(f"HTTP {status} {self._quote(body, 200)}", kind=_kind(status))
                return read(self._parse(body))
            except TimeoutError:
                error = self._error(f"no complete reply within {self._timeout_s:g} s", kind="timeout")
            except self._error as e:
                error = e
            self.counts[error.kind] += 1
            pause = pause_s(seed, attempt, backoff_s=self._backoff_s, retry_after=asked[0], date=asked[1])
            if self._busy is not None and asked[0] is not None and pause < self._timeout_s:
                self._busy(pause)
            if error.kind not in PASSING or attempt == self._retries or loop.time() + pause >= deadline:
                error = self._error(f"{self.shown}, attempt {attempt + 1}: {self._hide(str(error))}", kind=error.kind)
                logger.log(self._log_level, "%s", error)
                raise error
            attempt += 1
            self.counts["retries"] += 1
            await asyncio.sleep(pause)

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
        """Status, Retry-After with the Date it is counted from, and body; of a refusal only the body's beginning."""
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
            raise self._error(f"{type(e).__name__}: {e}", kind="transport") from e

    def _parse(self, body: bytes) -> Any:
        """Also refuses nesting and numbers past Python's limits."""
        if not self._is_json:
            return body.decode("latin-1")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as e:
            raise self._error(f"the body is not JSON ({e}): {self._quote(body, 80)}", kind="garbage") from e

    def _quote(self, body: bytes, num_bytes: int) -> str:
        # Hidden before it is cut: half a key is a leak too.
        return repr(self._hide(body.decode("latin-1"))[:num_bytes].encode("latin-1"))

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = secret.hidden_in(text)
        return text


def shown(url: str) -> str:
    """`url` for messages, which end up in files: without user:pass@, also where the password has / or # in it, and
    without a query, which may be a key. An @ after the ? may end either: then nothing of it is shown."""
    base, _, query = url.partition("?")
    scheme, slashes, rest = base.partition("//") if "//" in base else ("", "", base)
    return f"{scheme}{slashes}" + ("***" if "@" in query else rest.rpartition("@")[2])


def host_of(url: str) -> str:
    """The host of an http or https URL that the configuration names. Raises ConfigError for anything else."""
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 80) < 65536:
            return parsed.host
    what = f"url={shown(url)!r}; allowed is an http or https URL such as http://localhost:8000/retrieve"
    if url and "://" not in url:  # "localhost:8000" alone reads as something of the scheme localhost
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
