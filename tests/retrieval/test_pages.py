"""The fetcher that fetches pages itself; what may be reached, and what a page is, is tested in tests/tools."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.pages import Pages
from agentgrpo.services.addresses import Reachable
from agentgrpo.services.pages import PageClient
from tests.services.web import PRIVATE, PUBLIC, Names, Web, page, redirect

ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx"


def pages(*ports: int, names: Names | None = None, max_chars: int = 20_000, **settings: Any) -> Pages:
    """May reach 127.0.0.2 as if it were public."""
    reachable = Reachable(networks=[f"{PUBLIC}/32"], resolve=names or Names(web_example=[[PUBLIC]]))
    client = PageClient(**{"reachable": reachable, "ports": ports, "timeout_s": 5.0, **settings})
    return Pages(pages=client, max_chars=max_chars)


async def test_pages_in_order_and_their_failures_in_place() -> None:
    answers = {
        "/otter": page("<title>Otters</title><p>Eats <b>urchins</b>.<script>no</script>", kind="text/html"),
        "/moved": redirect("/otter"),
        "/plain": page("abcdefghijklmnopqrstuvwxyz"),
        "/image": page(b"\x89PNG", kind="image/png"),
        "/inside": redirect(f"http://{PRIVATE}/"),
    }
    async with Web(answers) as web:
        fetcher, base = pages(web.port, max_chars=23), f"http://web.example:{web.port}"
        urls = [f"{base}/{name}" for name in ("otter", "moved", "plain", "image", "none", "inside")]
        rows = await fetcher.fetch([*urls, "ftp://web.example/"])
        assert [row if isinstance(row, Passage) else row.kind for row in rows] == [
            Passage(id=urls[0], url=urls[0], text="Otters\nEats urchins."),
            Passage(id=urls[1], url=urls[1], text="Otters\nEats urchins."),
            Passage(id=urls[2], url=urls[2], text="abcdefghijklmnopqrstuvw"),
            "no_text",
            "http_404",
            "forbidden",
            "forbidden",
        ]
        assert str(rows[4]) == f"{urls[4]} could not be fetched: HTTP 404"
        assert fetcher.counts == {"pages": 7, "no_text": 1, "http_404": 1, "forbidden": 2}
        await fetcher.close()


async def test_equal_urls_on_their_way_are_fetched_once() -> None:
    async with Web({"/": page("x")}) as web:
        fetcher, url = pages(web.port), f"http://web.example:{web.port}/"
        first, second = await asyncio.gather(fetcher.fetch([url, url]), fetcher.fetch([url]))
        assert [row.text for row in (*first, *second) if isinstance(row, Passage)] == ["x"] * 3
        assert len(web.seen) == 1
        await fetcher.close()


async def test_a_page_that_takes_too_long_is_one_page() -> None:
    async with Web({"/slow": ENDLESS}, drip=True) as slow, Web({"/": page("y")}) as quick:
        fetcher = pages(slow.port, quick.port, timeout_s=2.0)
        rows = await fetcher.fetch([f"http://{PUBLIC}:{slow.port}/slow", f"http://{PUBLIC}:{quick.port}/"])
        assert [getattr(row, "kind", None) for row in rows] == ["timeout", None]
        await fetcher.close()


async def test_a_machine_without_a_network_is_no_page_s_failure() -> None:
    async def nobody_answers(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    fetcher = Pages(pages=PageClient(reachable=Reachable(resolve=nobody_answers)))
    with pytest.raises(RetrieverError, match="Temporary failure") as e:
        await fetcher.fetch(["http://web.example/"])
    assert e.value.kind == "dead_network"
    await fetcher.close()


def test_it_is_built_by_name() -> None:
    built = build_node("fetcher", {"name": "pages", "max_chars": 100, "ports": [8080], "allow_hosts": ["wiki.corp"]})
    assert isinstance(built, Pages)
    with pytest.raises(ConfigError, match="max_chars=0; at least 1 is allowed"):
        build_node("fetcher", {"name": "pages", "max_chars": 0})
