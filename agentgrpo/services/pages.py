"""Fetch pages from the open web at URLs that a stranger chose; no URL can reach the inside of this network.

    URL --checks--> host --resolved once, every address checked--> address --pinned connection--> answer
     ^                                                                                              |
     +---------------------------- at most max_redirects, each checked again -----------------------+

The request goes to the checked address, with the name in the Host header and in TLS, where the certificate must fit.
Proxies, cookies, credentials, caches and scripts are not used; a <meta> refresh is text. One deadline spans all."""

from __future__ import annotations

import asyncio
import errno
import html
import re
import socket
import zlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

import httpx

from agentgrpo.core.concurrency import Limiter, PerLoop
from agentgrpo.core.errors import ConfigError, line_of
from agentgrpo.services.addresses import Address, Forbidden, Reachable
from agentgrpo.services.pdf import PdfError, text_of_pdf

MAX_URL_CHARS = 2048
MAX_RATIO = 100
"""Maximum ratio of decoded to received bytes past the first 64 KiB: no page compresses that well."""
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DEAD_NETWORK = (errno.ENETUNREACH, errno.ENETDOWN)
"""Errors of a dead network, but also of a single address without a route, which a stranger may have chosen."""


class PageError(Exception):
    """A page could not be fetched or read. `kind`: timeout, transport, name (the host has no address), http_NNN,
    redirects, oversize, garbage, no_text, or dead_network if this machine has no network or no name server."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    url: str
    """URL after all redirects."""
    content_type: str
    """The server's Content-Type: "text/html; charset=utf-8"."""
    body: bytes
    """Decoded body of at most max_bytes."""


class PageClient:
    """Fetch at most max_concurrent pages at a time, first come first served. `timeout_s` spans waiting for a slot, name
    lookups, redirects and the body."""

    def __init__(
        self,
        *,
        reachable: Reachable,
        ports: Collection[int] = (80, 443),
        timeout_s: float = 20.0,
        max_bytes: int = 2 * 2**20,
        max_redirects: int = 5,
        max_concurrent: int = 8,
        user_agent: str = "agentgrpo",
    ) -> None:
        if not (timeout_s > 0 and max_bytes > 0 and max_redirects >= 0):
            raise ConfigError(
                f"timeout_s={timeout_s}, max_bytes={max_bytes}, max_redirects={max_redirects}; allowed are "
                "timeout_s > 0, max_bytes > 0, max_redirects >= 0"
            )
        self._reachable = reachable
        self._ports = frozenset(ports)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._headers = {
            "User-Agent": user_agent,
            "Accept": "text/html,text/plain,application/json,application/xml;q=0.9,*/*;q=0.1",
            "Accept-Encoding": "gzip",
        }
        self._slots = Limiter(max_concurrent)
        self._transport = PerLoop(self._open)

    async def close(self) -> None:
        """Close the running loop's connections; a later page opens new ones."""
        transport = self._transport.pop()
        if transport is not None:
            await transport.aclose()

    async def get(self, url: str) -> WebPage:
        """Fetch a page. Raises Forbidden if the URL or a redirect may not be reached, PageError for other failures."""
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                return await self._follow(url)
        except TimeoutError as e:
            raise PageError(f"no complete page within {self._timeout_s:g} s", kind="timeout") from e

    def _open(self) -> httpx.AsyncHTTPTransport:
        # The transport alone: a client would share cookies among episodes, and use the proxies of the environment.
        # Certificates are the usual ones, or those of SSL_CERT_FILE.
        return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))

    async def _follow(self, url: str) -> WebPage:
        target = self._checked(url)
        for _ in range(self._max_redirects + 1):
            response = await self._request(target)
            try:
                location = response.headers.get("Location")
                if response.status_code not in _REDIRECTS or location is None:
                    return await self._page(target, response)
            finally:
                await response.aclose()
            target = self._checked(location, base=target)
        raise PageError(f"more than {self._max_redirects} redirects", kind="redirects")

    def _checked(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        """Return `url`, resolved against `base`, without its fragment. Raises Forbidden if it is no plain web URL."""
        # Parsers disagree on the host of a URL with backslashes, spaces or control characters.
        if len(url) > MAX_URL_CHARS or "\\" in url or any(c.isspace() or not c.isprintable() for c in url):
            raise Forbidden(f"a URL has at most {MAX_URL_CHARS} characters and no spaces, backslashes or line breaks")
        try:
            target = httpx.URL(url) if base is None else base.join(url)
            host = target.host
        except (httpx.InvalidURL, ValueError) as e:
            raise Forbidden(f"not a URL: {e}") from e
        if target.scheme not in _DEFAULT_PORTS or not host:
            raise Forbidden("only http:// and https:// URLs can be fetched")
        if target.userinfo:
            raise Forbidden("a URL with a user name or password cannot be fetched")
        if (target.port or _DEFAULT_PORTS[target.scheme]) not in self._ports:
            raise Forbidden(f"only ports {', '.join(map(str, sorted(self._ports)))} can be reached")
        return target.copy_with(fragment=None)

    async def _request(self, target: httpx.URL) -> httpx.Response:
        """Request the page from the first of the host's addresses that takes a connection; returns the head."""
        host, port = target.raw_host.decode("ascii"), target.port or _DEFAULT_PORTS[target.scheme]
        try:
            addresses = await self._reachable.addresses(host, port)
        except OSError as e:
            seems_dead = isinstance(e, socket.gaierror) and e.errno == socket.EAI_AGAIN
            kind = "dead_network" if seems_dead and await self._reachable.is_cut_off() else "name"
            raise PageError(f"{host} has no address: {e}", kind=kind) from e
        for i, address in enumerate(addresses):
            try:
                return await self._ask(target, host, address)
            except httpx.ConnectError as e:
                if i + 1 == len(addresses):
                    kind = "dead_network" if _seems_dead(e) and await self._reachable.is_cut_off() else "transport"
                    raise PageError(f"{host} takes no connection: {e}", kind=kind) from e
            except (httpx.HTTPError, OSError) as e:
                raise PageError(line_of(e), kind="transport") from e
        raise AssertionError("addresses() gives at least one")

    async def _ask(self, target: httpx.URL, host: str, address: Address) -> httpx.Response:
        request = httpx.Request(
            "GET",
            target.copy_with(host=str(address)),
            headers={"Host": target.netloc.decode("ascii"), **self._headers},
            extensions={"sni_hostname": host.removesuffix(".")},
        )
        return await self._transport.get().handle_async_request(request)

    async def _page(self, target: httpx.URL, response: httpx.Response) -> WebPage:
        status = response.status_code
        if not 200 <= status < 300:
            raise PageError(f"HTTP {status}", kind=f"http_{status}")
        body = bytearray()
        try:
            async for part in _decoded(response, self._max_bytes):
                body += part
                if len(body) > self._max_bytes:
                    raise PageError(f"the page has more than {self._max_bytes} bytes", kind="oversize")
        except (httpx.HTTPError, OSError) as e:
            raise PageError(line_of(e), kind="transport") from e
        return WebPage(url=str(target), content_type=response.headers.get("Content-Type", ""), body=bytes(body))


async def _decoded(response: httpx.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the decoded body in parts of at most max_bytes + 1, however well it was compressed."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip"):  # also "gzip, gzip": only one layer is accepted
        raise PageError(f"a body encoded as {encoding[:40]!r}, not asked for", kind="garbage")
    unzip, num_in, num_out = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), 0, 0
    async for chunk in response.aiter_raw():
        num_in += len(chunk)
        try:
            part = unzip.decompress(chunk, max_bytes + 1)
        except zlib.error as e:
            raise PageError(f"a broken gzip body: {e}", kind="garbage") from e
        num_out += len(part)
        if unzip.unconsumed_tail or num_out > max(64 * 1024, MAX_RATIO * num_in):
            raise PageError(f"more than {max_bytes} bytes, or {MAX_RATIO} times its compressed size", kind="oversize")
        yield part
    if not unzip.eof:
        raise PageError("a gzip body that ends too early", kind="garbage")


def _seems_dead(error: BaseException) -> bool:
    """Whether a connection may have failed because this machine has no network, not because of the host."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DEAD_NETWORK:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


# --- The readable text of a web page, in time linear in its length: a page is a stranger's text.

_MARKUP = re.compile(r"<(?:/?[a-zA-Z]|[!?])")
# Possessive throughout (+, *), which prevents backtracking. A quote counts only after "=", as in HTML.
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^=>]++|=\s*+(?:"[^"]*+"|'[^']*+')|=(?!\s*+["']))*+)>""")
_HUGE_REFERENCE = re.compile(r"&#[0-9]{8,}+;?", re.ASCII)
"""Matches references too large for a character; Python may refuse to parse such numbers."""
_UNREAD = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object", "select"})
_OWN_LINE = frozenset(
    {
        *(
            "address",
            "article",
            "aside",
            "blockquote",
            "br",
            "dd",
            "div",
            "dl",
            "dt",
            "fieldset",
            "figcaption",
            "figure",
        ),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option"),
        *("p", "pre", "section", "table", "title", "tr", "ul"),
    }
)
_CELL = frozenset({"td", "th"})
_END_OF = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in _UNREAD}


def text_of(page: str) -> str:
    """Return the text of an HTML page, a line for each block, without scripts, styles, comments and tags. As in a
    browser, an unclosed tag, comment or script swallows the rest."""
    parts: list[str] = []
    at = 0
    while (markup := _MARKUP.search(page, at)) is not None:
        start = markup.start()
        parts.append(_inline(page[at:start]))
        tag = _TAG.match(page, start)
        at = _skip_comment(page, start) if tag is None else _skip_tag(page, tag, parts)
    parts.append(_inline(page[at:]))
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return "\n".join(line for line in lines if line and line != "|")


def _inline(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(_HUGE_REFERENCE.sub("\ufffd", text)))


def _skip_comment(page: str, start: int) -> int:
    """Return the end of a comment, a declaration or an unclosed tag."""
    mark = "-->" if page.startswith("<!--", start) else ">"
    end = page.find(mark, start + 2) if page[start + 1] in "!?" else -1
    return len(page) if end < 0 else end + len(mark)


def _skip_tag(page: str, tag: re.Match[str], parts: list[str]) -> int:
    """Return the position after `tag`, and append its layout to `parts`."""
    closing, name = tag[1], tag[2].lower()
    if name in _OWN_LINE:
        parts.append("\n- " if name == "li" and not closing else "\n")
    elif name in _CELL and closing:
        parts.append(" | ")
    if name not in _UNREAD or closing or tag[3].endswith("/"):
        return tag.end()
    end = _END_OF[name].search(page, tag.end())
    return len(page) if end is None else end.start()


# --- From a page's bytes to its text.

_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = re.compile(r"text/(plain|xml|markdown|csv)|application/(json|xml|[\w.-]+\+(json|xml))")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE | re.ASCII)
_KNOWN_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|latin-?1|iso-8859-\d+|windows-\d+|koi8-[ru]|gbk|gb2312|gb18030|big5|euc-(jp|kr)|"
    r"shift_jis",
    re.ASCII,
)
"""Pages in other charsets are read as UTF-8: some of Python's codecs are no charsets, or extremely slow."""


async def read(page: WebPage) -> str:
    """Return the readable text of a page, without HTML markup. Raises PageError (no_text) for images and the like."""
    kind = page.content_type.partition(";")[0].strip().lower()
    if kind == "application/pdf":
        try:
            return await asyncio.to_thread(text_of_pdf, page.body)
        except PdfError as e:
            raise PageError(str(e), kind="no_text") from e
    if kind not in _HTML and not _PLAIN.fullmatch(kind):
        raise PageError(f"a page of type {kind[:80] or 'unknown'} has no text", kind="no_text")
    return await asyncio.to_thread(_decode, page, kind in _HTML)  # megabytes of markup take a moment


def _decode(page: WebPage, is_html: bool) -> str:
    declared: Sequence[str] = _CHARSET.findall(page.content_type)
    if is_html and not declared:
        declared = _CHARSET.findall(page.body[:1024].decode("latin-1"))
    known = [charset.lower() for charset in declared if _KNOWN_CHARSETS.fullmatch(charset.lower())]
    try:
        text = page.body.decode(known[0] if known else "utf-8-sig", "replace")
    except LookupError:  # such as iso-8859-99
        text = page.body.decode("utf-8-sig", "replace")
    return text_of(text) if is_html else text
