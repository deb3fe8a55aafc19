"""The tool that reads the web: what a model may write as a URL, what a server may answer, and what is never reached.

In the attacks a canary listens on 127.0.0.1, which stands for everything private; no attack may make it hear a word."""

from __future__ import annotations

import asyncio
import errno
import gzip
import re
import socket
import ssl
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.core.types import Outcome
from agentgrpo.services.addresses import Reachable
from agentgrpo.services.pages import PageClient
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.fetch import Fetch
from agentgrpo.tools.schema import ArgumentSchema
from tests.services.web import PRIVATE, PUBLIC, Names, Web, page, redirect
from tests.thorough import late

NOWHERE: Any = None
"""The workspace: fetch reads nothing of it."""


def fetch(*ports: int, names: Names | None = None, max_chars: int = 20_000, **settings: Any) -> Fetch:
    """May reach 127.0.0.2 as if it were public."""
    reachable = Reachable(networks=[f"{PUBLIC}/32"], resolve=names or Names(web_example=[[PUBLIC]]))
    pages = PageClient(**{"reachable": reachable, "ports": ports, "timeout_s": 5.0, **settings})
    return Fetch(pages=pages, max_chars=max_chars)


async def ask(tool: Fetch, url: str, **which: Any) -> ToolResult:
    try:
        return await tool.call({"url": url, **which}, NOWHERE)
    finally:
        await tool.close()


def failed(text: str, kind: str) -> ToolResult:
    return replace(ToolResult.failed(text), detail=kind)


async def outcome(tool: Fetch, url: str) -> Outcome:
    return (await ask(tool, url)).outcome


# --- what a page gives


async def test_a_page_as_a_person_reads_it() -> None:
    html = page(
        "<html><head><title>Otters &amp; co</title><style>p {}</style><script>if (1 < 2) x('<p>')</script></head>"
        "<body><h1>The\n sea <b>otter</b></h1><p>Eats <a href='/urchin'>urchins</a>.<br>Floats.</p><!-- <p>no</p> -->"
        "<!-->"
        "<ul><li>one<li>two</ul><table><tr><td>a</td><td>b</td></tr></table>1 < 2<noscript>no</noscript></body></html>",
        kind="text/html; charset=utf-8",
    )
    async with Web({"/otter?x=1": html}) as web:
        tool = fetch(web.port)
        url = f"http://web.example:{web.port}/otter?x=1"
        assert await ask(tool, f"{url}#part") == ToolResult(
            outcome=Outcome.SUCCESS,
            text="Otters & co\nThe sea otter\nEats urchins.\nFloats.\n- one\n- two\na | b |\n1 < 2",
            detail=url,
        )
        [head] = web.seen
        assert head.startswith(f"GET /otter?x=1 HTTP/1.1\r\nHost: web.example:{web.port}\r\n")
        assert [name for name in ("cookie", "authorization", "referer") if f"{name}:" in head.lower()] == []


@pytest.mark.parametrize(
    "kind, body, text",
    [
        ("text/plain", b"a\n  b", "a\n  b"),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", "café"),
        ("text/plain; charset=nonsense", "café".encode(), "café"),
        ("text/plain; charset=punycode", b"caf-dma", "caf-dma"),  # a codec of Python's, but no charset
        ("text/plain; charset=iso-8859-99", b"cafe", "cafe"),
        ("text/plain", b"\xff\xfe", "\ufffd\ufffd"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/ld+json", b"[]", "[]"),
        ("application/atom+xml", b"<a/>", "<a/>"),
        ("text/xml", b"<a/>", "<a/>"),
        ("TEXT/HTML", b"<meta charset='windows-1252'>\x80 5", "€ 5"),
        ("application/xhtml+xml", b"<p>a</p>", "a"),
    ],
)
async def test_types_and_charsets(kind: str, body: bytes, text: str) -> None:
    async with Web({"/": page(body, kind=kind)}) as web:
        assert await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/") == ToolResult(
            outcome=Outcome.SUCCESS, text=text, detail=f"http://{PUBLIC}:{web.port}/"
        )


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "", "text/html2"])
async def test_what_has_no_text(kind: str) -> None:
    async with Web({"/": page(b"\x89PNG", kind=kind)}) as web:
        result = await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/")
        assert result == failed(f"a page of type {kind or 'unknown'} has no text", "no_text")


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ({}, "abc def\n[Part 1 of 3.]"),
        ({"part": 3}, "r abc\n[Part 3 of 3.]"),
        ({"find": "GHI"}, " ghi jk\n[Part 2 of 3.]"),
        ({"find": "abc"}, "abc def\n[Part 1 of 3. Also found in part 3.]"),
        ({"find": "abc", "part": 2}, "r abc\n[Part 3 of 3.]"),
    ],
)
async def test_a_long_page_is_opened_in_parts(which: dict[str, Any], text: str) -> None:
    async with Web({"/": page("abc def ghi jkr abc")}) as web:
        tool, url = fetch(web.port, max_chars=7), f"http://{PUBLIC}:{web.port}/"
        assert (await ask(tool, url, **which)).text == text


@pytest.mark.parametrize("which", [{"part": 4}, {"find": "nowhere"}, {"find": "def", "part": 2}])
async def test_a_part_that_a_page_does_not_have(which: dict[str, Any]) -> None:
    async with Web({"/": page("abc def ghi jkr abc")}) as web:
        result = await ask(fetch(web.port, max_chars=7), f"http://{PUBLIC}:{web.port}/", **which)
        assert result == ToolResult.failed("the page does not have that part or those words")
    whole, number = {"url": "u", "part": 2, "find": "x"}, {"url": "u", "part": 0}
    schema = ArgumentSchema("fetch", Fetch.spec.parameters)
    assert schema.problem(whole) is None
    assert schema.problem(number) is not None


async def test_a_status_that_is_no_page() -> None:
    async with Web({"/500": page("oops", "500 Internal Server Error"), "/304": page("", "304 Not Modified")}) as web:
        answers = [await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/{path}") for path in ("none", "500", "304")]
    assert answers == [failed(f"HTTP {status}", f"http_{status}") for status in (404, 500, 304)]


async def test_no_cookie_of_one_page_reaches_the_next() -> None:
    async with Web({"/": page("x", Set_Cookie="episode=1; Path=/")}) as web:
        tool = fetch(web.port)
        for _ in range(2):
            assert (await tool.call({"url": f"http://{PUBLIC}:{web.port}/"}, NOWHERE)).text == "x"
        assert [head for head in web.seen if "episode" in head] == []
        await tool.close()


def test_one_tool_serves_consecutive_loops() -> None:
    names = Names(web_example=[[PUBLIC]])
    reachable = Reachable(networks=[f"{PUBLIC}/32"], resolve=names)
    with socket.socket() as free:
        free.bind((PUBLIC, 0))
        port = free.getsockname()[1]
    tool = Fetch(pages=PageClient(reachable=reachable, ports=[port]))

    async def once() -> str:
        async with Web({"/": page("again")}, port=port):
            return (await tool.call({"url": f"http://web.example:{port}/"}, NOWHERE)).text

    assert [asyncio.run(once()) for _ in range(3)] == ["again"] * 3


# --- attacks: every URL below is tried with a canary at the private address


def hostile_urls(port: int) -> dict[str, str]:
    """What is tried -> its URL. All of them mean 127.0.0.1 to some parser or resolver."""
    hosts = {
        "plain": "127.0.0.1",
        "another of the block": "127.0.0.3",
        "decimal": "2130706433",
        "octal": "017700000001",
        "octal parts": "0177.0.0.1",
        "padded octal": "0000177.0.0.01",
        "hexadecimal": "0x7f000001",
        "hexadecimal parts": "0x7f.0.0.1",
        "mixed": "0x7f.0.1",
        "short": "127.1",
        "shorter": "127.0.1",
        "zero": "0",
        "unspecified": "0.0.0.0",
        "trailing dot": "127.0.0.1.",
        "unicode digits": "１２７.０.０.１",
        "circled digits": "①②⑦.⓪.⓪.①",
        "unicode dots": "127。0。0。1",
        "percent-encoded": "%31%32%37.0.0.1",
        "IPv6 loopback": "[::1]",
        "IPv6 unspecified": "[::]",
        "IPv4-mapped": "[::ffff:127.0.0.1]",
        "IPv4-mapped in hex": "[::ffff:7f00:1]",
        "IPv4-compatible": "[::127.0.0.1]",
        "NAT64": "[64:ff9b::7f00:1]",
        "6to4": "[2002:7f00:1::]",
        "scoped": "[fe80::1%25lo]",
        "localhost": "localhost",
        "LOCALHOST": "LOCALHOST",
        "localhost with a dot": "localhost.",
        "carrier-grade NAT": "100.64.0.1",
        "cloud metadata": "169.254.169.254",
        "private": "10.0.0.1",
        "link-local": "169.254.1.1",
        "multicast": "224.0.0.1",
        "broadcast": "255.255.255.255",
    }
    urls = {name: f"http://{host}:{port}/secret" for name, host in hosts.items()}
    return urls | {
        "user name": f"http://{PUBLIC}@127.0.0.1:{port}/secret",
        "user name and password": f"http://{PUBLIC}:80@127.0.0.1:{port}/secret",
        "empty user name": f"http://@127.0.0.1:{port}/secret",
        "credentials for an allowed host": f"http://user:pass@{PUBLIC}:{port}/secret",
        "backslash before @": f"http://{PUBLIC}\\@127.0.0.1:{port}/secret",
        "backslashes for slashes": f"http:\\\\127.0.0.1:{port}\\secret",
        "backslash after the host": f"http://127.0.0.1:{port}\\@{PUBLIC}/secret",
        "hash before @": f"http://127.0.0.1:{port}#@{PUBLIC}/secret",
        "question mark before @": f"http://127.0.0.1:{port}?@{PUBLIC}/secret",
        "space": f"http://127.0.0.1:{port} @{PUBLIC}/secret",
        "tab": f"http://127.0.0.1\t:{port}/secret",
        "line break": f"http://127.0.0.1:{port}/secret\r\nHost: x",
        "NUL": f"http://127.0.0.1\0:{port}/secret",
        "no host": "http:///secret",
        "no scheme": f"127.0.0.1:{port}/secret",
        "scheme-relative": f"//127.0.0.1:{port}/secret",
        "file": "file:///etc/passwd",
        "file with a host": f"file://{PUBLIC}/etc/passwd",
        "ftp": f"ftp://127.0.0.1:{port}/secret",
        "gopher": f"gopher://127.0.0.1:{port}/_GET%20/secret",
        "data": "data:text/plain,secret",
        "javascript": "javascript:fetch('/secret')",
        "unix": "http+unix://%2Fvar%2Frun%2Fdocker.sock/secret",
        "too long": f"http://{PUBLIC}:{port}/" + "a" * 3000,
        "empty": "",
        "a port too many": f"http://{PUBLIC}:99999/secret",
        "a port that is a word": f"http://{PUBLIC}:http/secret",
        "two ports": f"http://{PUBLIC}:{port}:80/secret",
    }


@pytest.mark.parametrize("attack", hostile_urls(0))
async def test_no_url_reaches_a_private_address(attack: str) -> None:
    secret = {"/secret": page("secret"), "/secret?": page("secret"), "/": page("secret")}
    async with Web(secret, address=PRIVATE) as canary:
        reachable = Reachable(networks=[f"{PUBLIC}/32"])  # and the system's own resolver
        url = hostile_urls(canary.port)[attack]
        tool = Fetch(pages=PageClient(reachable=reachable, ports=[canary.port], timeout_s=5.0))
        result = await ask(tool, url)
        assert (result.outcome, result.text[:7], canary.seen) == (Outcome.INVALID_ARGS, "error: ", [])


async def test_the_canary_hears_those_who_may_reach_it() -> None:
    """Without this the test above could pass because the canary is deaf."""
    async with Web({"/secret": page("secret")}, address=PRIVATE) as canary:
        tool = Fetch(allow_hosts=("localhost",), allow_networks=(f"{PRIVATE}/32",), ports=(canary.port,))
        for host in (PRIVATE, "localhost"):
            assert (await ask(tool, f"http://{host}:{canary.port}/secret")).text == "secret"
        assert len(canary.seen) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{port}/secret",
        "//127.0.0.1:{port}/secret",
        "http://inside.example:{port}/secret",
        "http://2130706433:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "http://web.example@127.0.0.1:{port}/secret",
        "\\\\127.0.0.1:{port}/secret",
        "file:///etc/passwd",
        "ftp://127.0.0.1:{port}/secret",
        "gopher://127.0.0.1:{port}/_secret",
        "http://web.example:1/",
    ],
)
async def test_redirects_are_checked_like_urls(status: int, to: str) -> None:
    names = Names(web_example=[[PUBLIC]], inside_example=[["127.0.0.1"]])
    async with Web(address=PRIVATE) as canary, Web(port=canary.port) as web:
        web.pages = {"/": redirect("/on", 302), "/on": redirect(to.format(port=canary.port), status)}
        result = await ask(fetch(web.port, names=names), f"http://web.example:{web.port}/")
        assert (result.outcome, len(web.seen), canary.seen) == (Outcome.INVALID_ARGS, 2, [])


async def test_redirects_are_followed_up_to_a_limit() -> None:
    hops = {f"/{n}": redirect(f"{n + 1}" if n % 2 else f"http://web.example:PORT/{n + 1}") for n in range(6)}
    async with Web({"/6": page("arrived")}) as web:
        web.pages |= {path: hop.replace(b"PORT", str(web.port).encode()) for path, hop in hops.items()}
        five = await ask(fetch(web.port), f"http://web.example:{web.port}/1")
        assert (five.text, five.detail) == ("arrived", f"http://web.example:{web.port}/6")
        six = await ask(fetch(web.port), f"http://web.example:{web.port}/0")
        assert six == failed("more than 5 redirects", "redirects")
        assert await ask(fetch(web.port, max_redirects=0), f"http://web.example:{web.port}/5") == failed(
            "more than 0 redirects", "redirects"
        )
        web.pages["/loop"] = redirect("/loop")
        assert (await ask(fetch(web.port), f"http://web.example:{web.port}/loop")).text.endswith("5 redirects")


async def test_a_meta_refresh_and_other_headers_lead_nowhere() -> None:
    async with Web(address=PRIVATE) as canary, Web(port=canary.port) as web:
        to = f"http://127.0.0.1:{canary.port}/secret"
        html = f'<meta http-equiv="refresh" content="0; url={to}"><iframe src="{to}"></iframe><img src="{to}">text'
        web.pages = {"/": page(html, kind="text/html", Refresh=f"0; url={to}", Link=f"<{to}>; rel=preload")}
        web.pages["/201"] = page("made", "201 Created", Location=to)
        assert (await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/")).text == "text"
        assert (await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/201")).text == "made"
        assert canary.seen == []


async def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    """DNS rebinding: what was checked is what is connected to, and every hop is looked up and checked anew."""
    async with Web(address=PRIVATE) as canary, Web({"/": page("public")}, port=canary.port) as web:
        names = Names(rebinding_example=[[PUBLIC], [PRIVATE]])
        tool = fetch(web.port, names=names)
        url = f"http://rebinding.example:{web.port}/"
        assert (await tool.call({"url": url}, NOWHERE)).text == "public"
        assert names.asked == ["rebinding.example"]
        assert (await tool.call({"url": url}, NOWHERE)).outcome is Outcome.INVALID_ARGS
        names = Names(rebinding_example=[[PUBLIC], [PRIVATE]])
        web.pages["/on"] = redirect("/")
        assert await outcome(fetch(web.port, names=names), f"{url}on") is Outcome.INVALID_ARGS
        assert (names.asked, canary.seen) == (["rebinding.example"] * 2, [])
        await tool.close()


async def test_an_address_that_takes_no_connection_is_passed_over() -> None:
    async with Web({"/": page("here")}) as web:
        names = Names(web_example=[["127.0.0.4", PUBLIC]])
        tool = Fetch(
            pages=PageClient(
                reachable=Reachable(networks=["127.0.0.4/32", f"{PUBLIC}/32"], resolve=names), ports=[web.port]
            )
        )
        assert (await ask(tool, f"http://web.example:{web.port}/")).text == "here"


async def test_proxies_of_the_environment_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Web({"/": page("direct")}) as web, Web(address=PRIVATE) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert (await ask(fetch(web.port), f"http://web.example:{web.port}/")).text == "direct"
        assert proxy.seen == []


async def test_only_the_listed_ports() -> None:
    async with Web({"/": page("x")}) as web:
        result = await ask(fetch(80, 443), f"http://{PUBLIC}:{web.port}/")
        assert (result, web.seen) == (ToolResult.refused("only ports 80, 443 can be reached"), [])


# --- bombs


BIG = 20 * 2**20


@pytest.mark.parametrize(
    "body, encoding, why",
    [
        (gzip.compress(bytes(BIG)), "gzip", "times its compressed size"),
        (gzip.compress(gzip.compress(bytes(BIG * 5))), "gzip, gzip", "not asked for"),
        (gzip.compress(bytes(2**20)), "gzip", "times its compressed size"),  # small enough, but no page
        (gzip.compress(bytes(BIG)), "x-gzip", "times its compressed size"),
        (zlib.compress(bytes(BIG)), "deflate", "not asked for"),
        (b"\x1b\xff\xff\x3f\x00\x24\x00\x40\x4a\xff\xff\x7f", "br", "not asked for"),
        (b"\x28\xb5\x2f\xfd\x04\x00\x02\x00\x02\x00", "zstd", "not asked for"),
        (gzip.compress(bytes(range(256)) * 4)[:-20], "gzip", "a gzip body that ends too early"),
        (b"no gzip at all", "gzip", "a broken gzip body"),
        (b" " * BIG, "identity", "more than 2097152 bytes"),
    ],
)
async def test_bombs_are_refused_while_they_are_small(body: bytes, encoding: str, why: str) -> None:
    async with Web({"/": page(body, Content_Encoding=encoding)}) as web:
        result = await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/")
        assert result.outcome is Outcome.RUNTIME_ERROR
        assert why in result.text


async def test_an_inner_bomb_is_only_bytes() -> None:
    """One layer is unpacked; what is inside is a body like any other."""
    inner = gzip.compress(bytes(BIG))
    async with Web({"/": page(gzip.compress(inner), kind="application/gzip", Content_Encoding="gzip")}) as web:
        result = await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/")
        assert result == failed("a page of type application/gzip has no text", "no_text")


async def test_an_honest_gzip_page_is_read() -> None:
    text = " ".join(f"word{i * i}" for i in range(20_000))
    async with Web({"/": page(gzip.compress(text.encode()), Content_Encoding="gzip")}) as web:
        assert (await ask(fetch(web.port, max_chars=10**7), f"http://{PUBLIC}:{web.port}/")).text == text
        small = await ask(fetch(web.port, max_bytes=1000), f"http://{PUBLIC}:{web.port}/")
        assert small.text.startswith("error: more than 1000 bytes")


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<",
            "<a ",
            "<a b='",
            "<a '>' ",
            "<a b=\"'>",
            "<!--",
            "<!-- -->",
            "<script>",
            "</script>",
            "<svg><svg>",
            "&",
            "&#",
        ),
        *("<p>", "<p/>", "=", "<a = = =", "<a b=  ", "&lt;", "\n", "<li>", "</", "<?", "<!"),
    ],
)
async def test_hostile_markup_takes_no_time(unit: str) -> None:
    html = (unit * (2**19 // len(unit))).encode()
    async with Web({"/": page(html, kind="text/html")}) as web:
        start = time.process_time()
        assert await outcome(fetch(web.port), f"http://{PUBLIC}:{web.port}/") is Outcome.SUCCESS
        assert time.process_time() - start < 4  # quadratic would be minutes


async def test_a_number_that_python_will_not_read() -> None:
    async with Web({"/": page("a&#" + "1" * 5000 + ";b", kind="text/html")}) as web:
        assert (await ask(fetch(web.port), f"http://{PUBLIC}:{web.port}/")).text == "a\ufffdb"


# --- time


@pytest.mark.clock
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nX: y", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx"]
)
async def test_a_drip_ends_at_the_deadline_and_so_does_its_connection(answer: bytes) -> None:
    async with Web({"/": answer}, drip=True) as web:
        start = time.monotonic()
        result = await ask(fetch(web.port, timeout_s=0.3), f"http://{PUBLIC}:{web.port}/")
        assert result == ToolResult(outcome=Outcome.TIMEOUT, text="error: no complete page within 0.3 s")
        assert not late(start, 1.3)
        async with asyncio.timeout(60):
            await web.idle()


@pytest.mark.clock
async def test_waiting_for_a_slot_counts() -> None:
    async with Web({"/": b"HTTP/1.1 200 OK\r\nX: y"}, drip=True) as web:
        tool = fetch(web.port, timeout_s=0.3, max_concurrent=1)
        start = time.monotonic()
        calls = [tool.call({"url": f"http://{PUBLIC}:{web.port}/"}, NOWHERE) for _ in range(5)]
        assert [result.outcome for result in await asyncio.gather(*calls)] == [Outcome.TIMEOUT] * 5
        assert not late(start, 1.3)
        await tool.close()


async def test_a_name_server_that_never_answers() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    tool = Fetch(pages=PageClient(reachable=Reachable(resolve=hang), timeout_s=0.2))
    assert await outcome(tool, "http://slow.example/") is Outcome.TIMEOUT


# --- whose fault it is


async def test_a_host_that_is_not_there_is_the_page_s_trouble() -> None:
    async with Web() as web:
        port = web.port
    for host in (PUBLIC, "unknown.example"):
        assert await outcome(fetch(port), f"http://{host}:{port}/") is Outcome.RUNTIME_ERROR


async def test_a_machine_without_a_network_is_nobody_s() -> None:
    async def no_name_server(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    tool = Fetch(pages=PageClient(reachable=Reachable(resolve=no_name_server)))
    with pytest.raises(ToolError, match="Temporary failure") as e:
        await ask(tool, "http://web.example/")
    assert e.value.kind == "dead_network"


def failing_for(*hosts: str) -> Any:
    """A resolver that has no answer for names that end so, as where their own servers fail, and one for all others."""

    async def resolve(host: str, port: int) -> list[str]:
        if host.endswith(hosts):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [PUBLIC]

    return resolve


async def test_a_name_whose_servers_fail_is_the_page_s_trouble() -> None:
    """Else a policy could void a bad episode by the URL that it asks for."""
    for known in ((), ("example.com",), ("wikipedia.org",)):
        tool = Fetch(pages=PageClient(reachable=Reachable(resolve=failing_for("policy.example", *known))))
        result = await ask(tool, "http://policy.example/")
        assert result.outcome is Outcome.RUNTIME_ERROR
        assert result.text.startswith("error: policy.example has no address")
    tool = Fetch(
        pages=PageClient(reachable=Reachable(resolve=failing_for("policy.example", "example.com", "wikipedia.org")))
    )
    with pytest.raises(ToolError):
        await ask(tool, "http://policy.example/")


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_an_address_without_a_route_is_the_page_s_trouble(
    is_cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of IPv6 where the machine has none; unless there is no network at all."""

    async def no_route(self: object, request: object) -> None:
        raise httpx.ConnectError("no route") from OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", no_route)
    resolve = failing_for("") if is_cut_off else failing_for("policy.example")
    tool = Fetch(pages=PageClient(reachable=Reachable(resolve=resolve)))
    if is_cut_off:
        with pytest.raises(ToolError, match="takes no connection") as e:
            await ask(tool, "http://[2606:4700::1111]/")
        assert e.value.kind == "dead_network"
    else:
        assert await outcome(tool, "http://[2606:4700::1111]/") is Outcome.RUNTIME_ERROR


# --- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for web.example that signs itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "web.example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("web.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem, secret = folder / "certificate.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, secret


async def test_the_certificate_must_fit_the_name_not_the_address(
    authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(web_example=[[PUBLIC]], other_example=[[PUBLIC]])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*authority)
    asked: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with Web({"/": page("safe")}, tls=server) as web:
        stranger = await ask(fetch(web.port, names=names), f"https://web.example:{web.port}/")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
        known = fetch(web.port, names=names)
        asked.clear()
        assert (await ask(known, f"https://web.example:{web.port}/")).text == "safe"
        assert asked == ["web.example"]
        assert web.seen[0].splitlines()[1] == f"Host: web.example:{web.port}"
        for result in (
            stranger,
            await ask(known, f"https://other.example:{web.port}/"),
            await ask(known, f"https://{PUBLIC}:{web.port}/"),
        ):
            assert result.outcome is Outcome.RUNTIME_ERROR
            assert re.search("certificate verify failed", result.text, re.IGNORECASE)
        assert len(web.seen) == 1


# --- settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"timeout_s": 0.0}, "timeout_s=0.0"),
        ({"max_redirects": -1}, "max_redirects=-1"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_chars": 0}, "max_chars=0"),
        ({"max_concurrent": 0}, "0 concurrent calls"),
        ({"allow_networks": ("10.1.2.3/8",)}, "network '10.1.2.3/8'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Fetch(**settings)
