"""What each search service is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.web import Brave, SearxNG, SerpApi, Serper, Tavily, WebSearch
from tests.retrieval.server import Behaviour, Server, after, say

KEY = "canary-0123456789"
FIXTURES = Path(__file__).parent / "fixtures"
SERVICES: dict[str, Callable[..., WebSearch]] = {
    "brave": Brave,
    "searxng": SearxNG,
    "serpapi": SerpApi,
    "serper": Serper,
    "tavily": Tavily,
}
PATHS = {"brave": "/web/search"}
SCORES: dict[str, tuple[float | None, float | None]] = {"searxng": (3.0, 0.5), "tavily": (0.98, 0.5)}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)


def service(name: str, server: Server, **settings: Any) -> WebSearch:
    settings = {"retries": 0, "backoff_s": 0.01, "requests_per_second": None, **settings}
    if name != "searxng":
        settings["api_key_env"] = "CANARY_KEY"
    return SERVICES[name](base_url=server.url.removesuffix("/retrieve") + "/", **settings)


def fixture(name: str, case: str) -> Behaviour:
    answer = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))[case]
    return say(answer["body"], answer["status"])


async def ask(name: str, *plan: Behaviour, query: str = "sea otter", top_k: int = 2, **settings: Any) -> Any:
    """The passages or the error of one search."""
    async with Server(*plan) as server:
        web = service(name, server, **settings)
        try:
            return await web.search(query, top_k=top_k)
        except RetrieverError as e:
            return e
        finally:
            await web.close()


# --- answers


@pytest.mark.parametrize("name", SERVICES)
async def test_results_become_passages(name: str) -> None:
    first, second = SCORES.get(name, (None, None))
    url = "https://zoo.example/otter"
    assert await ask(name, fixture(name, "results")) == [
        Passage(id=url, url=url, title="Sea otter", text="Eats urchins, if a < b.", score=first),
        Passage(id="https://sea.example/", url="https://sea.example/", title="Kelp", text="", score=second),
    ]


@pytest.mark.parametrize("name", SERVICES)
async def test_nothing_found_is_an_answer(name: str) -> None:
    assert await ask(name, fixture(name, "empty")) == []


@pytest.mark.parametrize("name", SERVICES)
async def test_what_has_no_url_or_says_nothing_is_left_out(name: str) -> None:
    found = await ask(name, fixture(name, "missing"), top_k=9)
    assert [(p.id, p.title, p.text) for p in found] == [
        ("https://b.example/", "", "No title."),
        ("https://c.example/", "Only a title", ""),
    ]


@pytest.mark.parametrize("name", SERVICES)
async def test_what_is_malformed_is_garbage(name: str) -> None:
    for behaviour in (fixture(name, "malformed"), say({}), say([]), say("null"), say({"error": "no"})):
        error = await ask(name, behaviour)
        assert isinstance(error, RetrieverError)
        assert error.kind == ("unresponsive" if "the search failed: no" in str(error) else "garbage")


@pytest.mark.parametrize("name", ["searxng", "serpapi"])
async def test_a_search_that_no_engine_answered_is_no_empty_page(name: str) -> None:
    error = await ask(name, fixture(name, "unresponsive"), retries=3)
    assert error.kind == "unresponsive"
    assert ("CAPTCHA" if name == "searxng" else "couldn't get valid results") in str(error)


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("case", ["refused", "quota"])
async def test_refusals_are_typed_and_say_what_the_service_said(name: str, case: str) -> None:
    answer = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))[case]
    error = await ask(name, fixture(name, case), backoff_s=60.0)  # past timeout_s: no second attempt
    assert error.kind == ("http_429" if answer["status"].startswith("429") else "http_4xx")
    body = answer["body"] if isinstance(answer["body"], str) else json.dumps(answer["body"])
    assert body[:40].encode() in str(error).encode()


# --- requests


@pytest.mark.parametrize(
    "name, settings, top_k, sent",
    [
        ("searxng", {}, 5, {"q": "sea otter", "format": "json"}),
        (
            "searxng",
            {
                "language": "de",
                "categories": ("general", "science"),
                "engines": ("wikipedia",),
                "safe_search": "strict",
                "time_range": "year",
            },
            5,
            {
                "q": "sea otter",
                "format": "json",
                "language": "de",
                "categories": "general,science",
                "engines": "wikipedia",
                "safesearch": "2",
                "time_range": "year",
            },
        ),
        ("searxng", {"safe_search": "off"}, 5, {"q": "sea otter", "format": "json", "safesearch": "0"}),
        ("serper", {}, 10, {"q": "sea otter"}),
        ("serper", {"country": "us", "language": "en"}, 20, {"q": "sea otter", "num": 20, "gl": "us", "hl": "en"}),
        ("serpapi", {}, 20, {"q": "sea otter", "engine": "google", "api_key": KEY}),
        (
            "serpapi",
            {"country": "us", "language": "en", "safe_search": "strict"},
            5,
            {"q": "sea otter", "engine": "google", "gl": "us", "hl": "en", "safe": "active", "api_key": KEY},
        ),
        ("tavily", {}, 30, {"query": "sea otter", "max_results": 20, "search_depth": "basic", "topic": "general"}),
        (
            "tavily",
            {"search_depth": "advanced", "country": "Germany"},
            5,
            {
                "query": "sea otter",
                "max_results": 5,
                "search_depth": "advanced",
                "topic": "general",
                "country": "germany",
            },
        ),
        ("brave", {}, 30, {"q": "sea otter", "count": "20", "result_filter": "web", "text_decorations": "false"}),
        (
            "brave",
            {"country": "de", "language": "de", "safe_search": "off"},
            5,
            {
                "q": "sea otter",
                "count": "5",
                "country": "DE",
                "search_lang": "de",
                "safesearch": "off",
                "result_filter": "web",
                "text_decorations": "false",
            },
        ),
    ],
)
async def test_what_is_asked(name: str, settings: dict[str, Any], top_k: int, sent: dict[str, Any]) -> None:
    headers = {"serper": "x-api-key: ", "tavily": "authorization: bearer ", "brave": "x-subscription-token: "}
    async with Server(fixture(name, "empty")) as server:
        web = service(name, server, **settings)
        assert await web.search("sea otter", top_k=top_k) == []
        assert server.requests == [sent]
        method = "post" if name in ("serper", "tavily") else "get"
        assert server.heads[0].startswith(f"{method} {PATHS.get(name, '/search')}{'?' if method == 'get' else ' '}")
        assert (f"{headers[name]}{KEY}\r\n" if name in headers else "accept:") in server.heads[0]
        assert KEY not in web.identity
        await web.close()


async def test_a_query_is_cut_to_what_the_service_takes() -> None:
    async with Server(fixture("brave", "empty")) as server:
        web = service("brave", server)
        await web.search("wort " * 80, top_k=1)
        await web.search("x" * 999, top_k=1)
        await web.search("a\ud800\nb", top_k=1)
        assert [request["q"] for request in server.requests] == ["wort " * 49 + "wort", "x" * 400, "a\ufffd b"]
        assert await web.search(" \n", top_k=1) == []
        assert len(server.requests) == 3
        await web.close()


async def test_equal_queries_on_their_way_are_asked_once() -> None:
    async with Server(after(0.05, fixture("searxng", "results"))) as server:
        web = service("searxng", server)
        rows = await asyncio.gather(*(web.search(q, top_k=2) for q in ("a", "b", "a", " a  ", "a")))
        assert sorted(request["q"] for request in server.requests) == ["a", "b"]
        assert [len(row) for row in rows] == [2] * 5
        assert len({id(row) for row in rows}) == 5  # lists of their own
        assert web.counts == {"requests": 2}
        await web.close()


async def test_a_search_that_is_given_up_ends_and_disturbs_nobody() -> None:
    async with Server(after(0.2, fixture("searxng", "results"))) as server:
        web = service("searxng", server)
        first, second = (asyncio.create_task(web.search("a", top_k=2)) for _ in range(2))
        async with asyncio.timeout(60):
            await server.until(lambda: server.live == 1)
            first.cancel()
            assert len(await second) == 2
        assert (first.cancelled(), len(server.requests)) == (True, 1)
        await web.close()


async def test_a_busy_service_is_left_alone_by_every_query() -> None:
    busy = say("", "429 Too Many Requests", "Retry-After: 1\r\n")
    async with Server(busy, fixture("searxng", "results"), keep_alive=True) as server:
        web, loop = service("searxng", server, retries=1, requests_per_second=1000), asyncio.get_running_loop()
        start = loop.time()
        first = asyncio.create_task(web.search("a", top_k=1))
        async with asyncio.timeout(60):
            while not web.counts["refused"]:  # noqa: ASYNC110 - what is waited for comes through a socket
                await asyncio.sleep(0.005)
            await web.search("b", top_k=1)
            await first
        assert loop.time() - start >= 1
        assert len(server.requests) == 3
        await web.close()


# --- probes and settings


@pytest.mark.parametrize("name", SERVICES)
async def test_a_probe_says_what_to_do(name: str) -> None:
    async with Server(fixture(name, "results"), fixture(name, "refused")) as server:
        web = service(name, server)
        await web.probe()
        with pytest.raises(ConfigError, match=r"HTTP 4\d\d .*; check .*retriever\.web\.base_url") as e:
            await web.probe()
        assert ("json under search.formats" in str(e.value)) == (name == "searxng")
        assert KEY not in str(e.value)
        await web.close()
    with pytest.raises(RetrieverError, match=r"attempt 1: ConnectError: .*; check ") as down:
        await web.probe()
    assert down.value.kind == "transport"
    await web.close()


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"searxng"}))
def test_a_key_that_is_missing_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_KEY")
    with pytest.raises(ConfigError, match="the environment variable CANARY_KEY is not set"):
        SERVICES[name](api_key_env="CANARY_KEY")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SearxNG(safe_search="strickt"), "safe_search='strickt'; allowed are off, moderate, strict. Did you"),
        (lambda: SearxNG(time_range="week"), "time_range='week'; allowed are day, month, year."),
        (lambda: SearxNG(base_url="localhost:8080"), "allowed is an http or https URL"),
        (
            lambda: Tavily(api_key_env="CANARY_KEY", search_depth="deep"),
            "allowed are basic, advanced, fast, ultra-fast",
        ),
        (lambda: Tavily(api_key_env="CANARY_KEY", topic="news", country="spain"), "is allowed with topic=general"),
        (lambda: SerpApi(api_key_env="CANARY_KEY", safe_search="moderate"), "allowed are off, strict"),
        (lambda: Brave(api_key_env="CANARY_KEY", requests_per_second=0), "requests_per_second=0; above 0 is allowed"),
    ],
)
def test_options_that_do_not_exist(make: Callable[[], WebSearch], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        make()
    assert message in str(e.value)


def test_what_determines_an_answer_is_the_identity() -> None:
    plain, german = SearxNG(), SearxNG(language="de", base_url="http://elsewhere:1", retries=0)
    assert (plain.identity, german.identity) == (
        'SearxNG {"format": "json"}',
        'SearxNG {"format": "json", "language": "de"}',
    )
