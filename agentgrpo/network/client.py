"""One URL that takes JSON by POST. A call ends in time, with a result or a typed error, whatever the server does.

httpx's own timeouts are per read, which a slow drip outlives: they are off, and one deadline spans every attempt and
every pause between attempts. Bodies are asked for uncompressed and refused otherwise: a few kilobytes of gzip can be
gigabytes of text."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from agentgrpo.concurrency import PerLoop
from agentgrpo.errors import ConfigError, EpisodeError
from agentgrpo.network.pauses import pause_s
from agentgrpo.network.secret import Secret

logger = logging.getLogger(__name__)

T = TypeVar("T")
PASSING = ("http_429", "http_500", "transport")
"""Kinds of failure that another attempt may not meet."""


class JsonClient:
    """Up to `retries` further attempts follow on 429, 5xx and transport errors, never on anything else, after
    backoff_s * 2^attempt (half of it jitter) or the Retry-After the server asks for; an attempt that could not start
    before the deadline is not waited for. Works in any number of consecutive event loops, with a client for each.

    Failures are raised as `error`, whose `kind` says what failed: timeout, transport, http_3xx, http_4xx, http_429,
    http_500 (any 5xx), oversize, garbage.

    `counts`: requests (attempts), retries, and failures by kind."""

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
    ) -> None:
        host = host_of(url)
        self.url, self.shown = url, shown(url)
        if not (timeout_s > 0 and retries >= 0 and backoff_s >= 0 and max_response_bytes > 0):
            raise ConfigError(
                f"{self.shown}: timeout_s={timeout_s}, retries={retries}, backoff_s={backoff_s}, max_response_bytes="
                f"{max_response_bytes}; allowed are timeout_s > 0, retries >= 0, backoff_s >= 0, max_response_bytes > 0"
            )
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
        self._client = PerLoop(self._open)

    async def close(self) -> None:
        """Ends the running loop's client; the next call would open another."""
        client = self._client.pop()
        if client is not None:
            await client.aclose()

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
        loop = asyncio.get_running_loop()
        deadline = (loop.time() if arrived is None else arrived) + self._timeout_s
        seed = f"{self.url} {self.counts['requests'] if seed is None else seed}"
        content, attempt = json.dumps(payload).encode(), 0
        while True:
            retry_after: str | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    if attempt and admit is not None:
                        await admit()
                    status, retry_after, body = await self._attempt(content)
                if not 200 <= status < 300:
                    raise self._error(f"HTTP {status} {self._quote(body, 200)}", kind=_kind(status))
                return read(self._parse(body))
            except TimeoutError:
                error = self._error(f"no complete reply within {self._timeout_s:g} s", kind="timeout")
            except self._error as e:
                error = e
            self.counts[error.kind] += 1
            pause = pause_s(seed, attempt, backoff_s=self._backoff_s, retry_after=retry_after)
            if error.kind not in PASSING or attempt == self._retries or loop.time() + pause >= deadline:
                error = self._error(f"{self.shown}, attempt {attempt + 1}: {self._hide(str(error))}", kind=error.kind)
                logger.warning("%s", error)
                raise error
            attempt += 1
            self.counts["retries"] += 1
            await asyncio.sleep(pause)

    def _open(self) -> httpx.AsyncClient:
        # A connection per call: calls are batches and far between, and a connection that the server closed while it
        # idled would look like a failure of the next call. So nothing outlives its event loop either.
        return httpx.AsyncClient(
            headers={"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=self._trust_env,
        )

    async def _attempt(self, content: bytes) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and body; of a refusal only the beginning of the body."""
        self.counts["requests"] += 1
        body = bytearray()
        headers = {k: v for secret in self._secrets for k, v in secret.headers().items()}
        try:
            async with self._client.get().stream("POST", self.url, content=content, headers=headers) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    encoding = response.headers["Content-Encoding"]
                    raise self._error(f"a body encoded as {encoding!r}, not asked for", kind="garbage")
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self._max_response_bytes:
                        raise self._error(f"more than {self._max_response_bytes} bytes", kind="oversize")
                    if not response.is_success:
                        break
                return response.status_code, response.headers.get("Retry-After"), bytes(body)
        except (httpx.HTTPError, OSError) as e:
            raise self._error(f"{type(e).__name__}: {e}", kind="transport") from e

    def _parse(self, body: bytes) -> Any:
        """Also refuses nesting and numbers past Python's limits."""
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
    """`url` for messages, which end up in files: without user:pass@ and without a query, which may be a key."""
    return re.sub(r"//[^/#]*@", "//", url.partition("?")[0])


def host_of(url: str) -> str:
    """The host of an http or https URL that the configuration names. Raises ConfigError for anything else."""
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 80) < 65536:
            return parsed.host
    raise ConfigError(f"url={shown(url)!r}; allowed is an http or https URL such as http://localhost:8000/retrieve")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _kind(status: int) -> str:
    if status == 429:
        return "http_429"
    return {3: "http_3xx", 4: "http_4xx", 5: "http_500"}.get(status // 100, "garbage")
