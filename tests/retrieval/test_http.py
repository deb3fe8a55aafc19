"""The HTTP client against a server that does what it should, and against one that does everything else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.http import HttpPageFetcher, HttpReranker, HttpRetriever, remote
from tests.builders import passage
from tests.retrieval.server import FAULTS, Server, after, answer, document, hang, say
from tests.thorough import late


def client(url: str, **settings: Any) -> HttpRetriever:
    return HttpRetriever(url=url, **{"timeout_s": 5.0, "backoff_s": 0.01, **settings})


async def ids(retriever: HttpRetriever, *queries: str, top_k: int = 1) -> list[str]:
    """The first id of each row, or the kind of its error, in order."""
    rows = await asyncio.gather(*(retriever.search(q, top_k=top_k) for q in queries), return_exceptions=True)
    return [row.kind if isinstance(row, RetrieverError) else row[0].id for row in rows]  # type: ignore[index]


# --- what a good server gets and gives


async def test_queries_that_arrive_together_are_one_request() -> None:
    async with Server(answer) as server:
        retriever = client(server.url)
        assert await ids(retriever, "a", "b", "a", "c") == ["a-1", "b-1", "a-1", "c-1"]
        assert server.requests == [{"queries": ["a", "b", "c"], "topk": 1, "return_scores": True}]
        assert await retriever.search("d", top_k=2) == [
            Passage(id="d-1", title="d", text="about d", score=1.0),
            Passage(id="d-2", title="d", text="about d", score=0.5),
        ]
        assert "accept-encoding: identity" in server.heads[0]
        assert retriever.counts == {"requests": 2}
        await retriever.close()


async def test_the_single_form_asks_one_query_at_a_time() -> None:
    async def single(request: Any, writer: asyncio.StreamWriter) -> None:
        await say({"results": [document(request["query"])]})(request, writer)

    async with Server(single) as server:
        retriever = client(server.url, protocol="single", max_concurrent=1)
        assert await ids(retriever, "a", "b", top_k=3) == ["a-1", "b-1"]
        assert server.requests == [{"query": "a", "top_k": 3}, {"query": "b", "top_k": 3}]
        await retriever.close()


async def test_bare_documents_scores_that_are_missing_and_rows_that_are_too_long() -> None:
    row = [
        {"id": 1, "text": "x", "title": "T", "url": "u"},
        {"contents": '"T"\ny', "score": 2},
        {"id": "c", "text": "z"},
    ]
    async with Server(say({"result": [row]})) as server:
        retriever = client(server.url)
        [first, second] = await retriever.search("q", top_k=2)
        assert first == Passage(id="1", text="x", title="T", url="u")
        assert (second.title, second.text, second.score) == ("T", "y", 2.0)
        await retriever.close()


async def test_an_empty_row_is_an_answer() -> None:
    async with Server(say({"result": [[]]})) as server:
        retriever = client(server.url)
        assert await retriever.search("q", top_k=2) == []
        await retriever.close()


async def test_missing_rows_are_errors_of_their_queries_and_never_shift(caplog: pytest.LogCaptureFixture) -> None:
    rows = [[document("a")], [{"id": "b", "text": "x", "score": float("nan")}], [document("c")]]
    async with Server(say({"result": rows})) as server:
        retriever = client(server.url)
        assert await ids(retriever, "a", "b", "c", "d") == ["a-1", "garbage", "c-1", "garbage"]
        assert retriever.counts == {"requests": 1, "garbage": 2}
        assert "2 of 4 rows failed, first: a document is malformed: a score is nan" in caplog.text
        await retriever.close()


async def test_with_too_many_rows_no_row_is_trusted() -> None:
    async with Server(say({"result": [[document(q)] for q in "abc"]})) as server:
        retriever = client(server.url)
        assert await ids(retriever, "a", "b") == ["garbage", "garbage"]
        await retriever.close()


async def test_live_requests_are_bounded_and_first_come_first_served() -> None:
    async with Server(after(0.02, answer)) as server:
        retriever = client(server.url, max_batch=1, max_concurrent=2)
        queries = [f"q{i}" for i in range(7)]
        assert await ids(retriever, *queries) == [f"{q}-1" for q in queries]
        assert server.most_live == 2
        assert [request["queries"] for request in server.requests] == [[q] for q in queries]
        await retriever.close()


async def test_a_search_that_nobody_waits_for_ends_its_request() -> None:
    async with Server(FAULTS["drips a body"][0]) as server:
        retriever = client(server.url)
        search = asyncio.create_task(retriever.search("q", top_k=1))
        async with asyncio.timeout(60):
            await server.until(lambda: server.live == 1)
            search.cancel()
            await server.until(lambda: server.live == 0)
        assert search.cancelled()
        await retriever.close()


async def test_no_connection_outlives_its_call() -> None:
    async with Server(answer, keep_alive=True) as server:
        retriever = client(server.url)
        assert await ids(retriever, "q") == ["q-1"]
        async with asyncio.timeout(60):
            await server.until(lambda: server.live == 0)
        await retriever.close()


def test_one_client_serves_consecutive_loops_closed_or_not() -> None:
    retriever: HttpRetriever | None = None

    async def once(close: bool) -> list[str]:
        nonlocal retriever
        async with Server(answer) as server:
            if retriever is None:
                retriever = client(server.url)
            retriever._client.url = server.url  # a new port in each loop
            found = await ids(retriever, "a", "b")
            if close:
                await retriever.close()
            return found

    assert [asyncio.run(once(close)) for close in (False, True, False, True)] == [["a-1", "b-1"]] * 4


# --- faults


@pytest.mark.clock
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_becomes_a_typed_error_in_time(fault: str) -> None:
    behaviour, kind = FAULTS[fault]
    async with Server(behaviour) as server:
        deadline_s = 0.3 if kind == "timeout" else 3.0  # a busy machine may take its time over two attempts
        retriever = client(server.url, timeout_s=deadline_s, retries=1)
        start = time.monotonic()
        with pytest.raises(RetrieverError) as e:
            await retriever.search("q", top_k=1)
        assert e.value.kind == kind
        assert str(e.value).startswith(f"{server.url}, attempt ") or kind == "garbage"
        assert not late(start, deadline_s + 1)
        retried = kind in ("transport", "http_500")
        more = {"retries": 1} if retried else {"refused": 1} if kind == "http_429" else {}
        assert retriever.counts == {"requests": 1 + retried, kind: 1 + retried} | more
        await retriever.close()


async def test_a_server_that_is_not_there() -> None:
    async with Server(answer) as server:
        url = server.url
    retriever = client(url, retries=2)
    assert await ids(retriever, "q") == ["transport"]
    assert retriever.counts == {"requests": 3, "retries": 2, "transport": 3}
    await retriever.close()


async def test_what_passes_is_retried_and_what_does_not_is_not() -> None:
    busy, down = say("", "429 Too Many Requests"), say("", "500 Internal Server Error")
    async with Server(down, busy, down, answer) as server:
        retriever = client(server.url)
        assert await ids(retriever, "q") == ["q-1"]
        assert retriever.counts == {"requests": 4, "retries": 2, "http_500": 2, "refused": 1}
        assert server.requests == [{"queries": ["q"], "topk": 1, "return_scores": True}] * 4
        await retriever.close()
    async with Server(down, down, answer) as server:
        retriever = client(server.url, retries=1)
        assert await ids(retriever, "q", "r") == ["http_500", "http_500"]
        assert await ids(retriever, "q", "r") == ["q-1", "r-1"]
        await retriever.close()


@pytest.mark.clock
async def test_retry_after_is_waited_for_only_where_time_is_left() -> None:
    def busy(seconds: str) -> Any:
        return say("", "429 Too Many Requests", f"Retry-After: {seconds}\r\n")

    async with Server(busy("1"), answer) as server:
        retriever = client(server.url)
        start = time.monotonic()
        assert await ids(retriever, "q") == ["q-1"]
        assert time.monotonic() - start >= 1
        assert not late(start, 4)
        await retriever.close()
    async with Server(busy("3600"), answer) as server:
        retriever = client(server.url)
        start = time.monotonic()
        assert await ids(retriever, "q") == ["http_429"]
        assert not late(start, 1)
        await retriever.close()


@pytest.mark.clock
async def test_the_deadline_spans_waiting_attempts_and_pauses() -> None:
    async with Server(after(0.15, say("", "500 Internal Server Error"))) as server:
        retriever = client(server.url, timeout_s=0.4, retries=100)
        start = time.monotonic()
        [kind] = await ids(retriever, "q")
        assert kind in ("timeout", "http_500")  # in the middle of an attempt, or of a pause that would end too late
        assert not late(start, 1.4)
        await retriever.close()
    async with Server(hang) as server:  # five batches queue for one slot; all end with the first
        retriever = client(server.url, timeout_s=0.3, max_batch=1, max_concurrent=1)
        start = time.monotonic()
        assert await ids(retriever, *"abcde") == ["timeout"] * 5
        assert not late(start, 1.2)  # and not after five deadlines
        await retriever.close()


async def test_the_server_s_own_words_are_in_the_message() -> None:
    async with Server(say({"detail": "no field topk"}, "422 Unprocessable Entity")) as server:
        retriever = client(server.url)
        with pytest.raises(RetrieverError, match=r"attempt 1: HTTP 422 .*no field topk"):
            await retriever.search("q", top_k=1)
        await retriever.close()


async def test_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(answer) as server, Server(say({"result": [[document("proxied")]]})) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/retrieve"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        local = client(server.url)
        assert await ids(local, "q") == ["q-1"]
        far = client("http://retriever.invalid/retrieve")
        assert await ids(far, "q") == ["proxied-1"]
        assert proxy.heads[0].startswith("post http://retriever.invalid/retrieve ")
        untrusting = client("http://retriever.invalid/retrieve", trust_env=False, retries=0)
        assert await ids(untrusting, "q") == ["transport"]
        for retriever in (local, far, untrusting):
            await retriever.close()


async def test_a_body_in_an_encoding_that_was_not_asked_for_is_named() -> None:
    async with Server(FAULTS["a gzip bomb"][0]) as server:
        retriever = client(server.url)
        with pytest.raises(RetrieverError, match="a body encoded as 'gzip', not asked for"):
            await retriever.search("q", top_k=1)
        await retriever.close()


# --- pages and reranking


async def test_pages_come_back_in_order_with_their_url_as_id() -> None:
    pages = [{"title": "T", "text": "x", "url": "elsewhere"}, None, {"error": "404"}, {"url": "d"}, {"contents": "y"}]
    async with Server(say({"results": pages})) as server:
        fetcher = HttpPageFetcher(url=server.url)
        found = await fetcher.fetch(["a", "b", "c", "d", "e"])
        assert [page.kind if isinstance(page, RetrieverError) else page for page in found] == [
            Passage(id="a", url="a", title="T", text="x"),
            "page",
            "page",
            "garbage",
            Passage(id="e", url="e", text="y"),
        ]
        assert server.requests == [{"urls": ["a", "b", "c", "d", "e"]}]
        assert fetcher.counts == {"requests": 1, "page": 2, "garbage": 1}
        await fetcher.close()


@pytest.mark.parametrize("fault", ["500", "hangs", "200 and HTML", "no row", "a gzip bomb"])
async def test_a_fetch_that_fails_is_an_error_for_each_page(fault: str) -> None:
    behaviour, kind = FAULTS[fault]
    async with Server(behaviour) as server:
        fetcher = HttpPageFetcher(url=server.url, timeout_s=0.3 if fault == "hangs" else 5.0, retries=0)
        pages = await fetcher.fetch(["a", "b"])
        assert [page.kind for page in pages if isinstance(page, RetrieverError)] == [kind, kind]
        assert await fetcher.fetch([]) == []
        await fetcher.close()


@pytest.mark.parametrize(
    "reply",
    [
        {"scores": [0.25, 1, 0.25]},
        {"results": [{"index": i, "relevance_score": s} for i, s in ((1, 1.0), (0, 0.25), (2, 0.25))]},
    ],
)
async def test_reranking_by_scores_in_either_form(reply: object) -> None:
    passages = [passage("a", "x", title="T"), passage("b", "y", score=9.0), passage("c", "z")]
    async with Server(say(reply)) as server:
        reranker = HttpReranker(url=server.url)
        best = await reranker.rerank("q", passages, top_k=2)
        assert [(p.id, p.score) for p in best] == [("b", 1.0), ("a", 0.25)]
        assert server.requests == [{"query": "q", "documents": ["T\nx", "y", "z"], "top_k": 3}]
        assert await reranker.rerank("q", [], top_k=2) == []
        await reranker.close()


@pytest.mark.parametrize(
    "reply",
    [
        {"scores": [1.0]},
        {"scores": [1.0, float("nan")]},
        {"scores": 3},
        {"results": [{"index": 0, "relevance_score": 1.0}]},
        {"results": ["a", "b"]},
        [],
        7,
    ],
)
async def test_scores_that_do_not_fit_are_garbage(reply: object) -> None:
    async with Server(say(reply)) as server:
        reranker = HttpReranker(url=server.url)
        with pytest.raises(RetrieverError) as e:
            await reranker.rerank("q", [passage("a", "x"), passage("b", "y")], top_k=2)
        assert e.value.kind == "garbage"
        assert reranker.counts == {"requests": 1, "garbage": 1}
        await reranker.close()


# --- settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"url": "localhost:8000"}, "url='localhost:8000'; allowed is an http or https URL"),
        ({"url": "ftp://x/retrieve"}, "allowed is an http or https URL"),
        ({"url": "http:///retrieve"}, "allowed is an http or https URL"),
        ({"url": "http://localhost:99999/"}, "allowed is an http or https URL"),
        ({"url": "http://localhost:x/"}, "allowed is an http or https URL"),
        ({"protocol": "batches"}, "protocol='batches'; allowed are batch and single. Did you mean 'batch'?"),
        ({"timeout_s": 0.0}, "timeout_s=0.0"),
        ({"retries": -1}, "retries=-1"),
        ({"max_concurrent": 0}, "0 concurrent calls; at least 1"),
        ({"max_batch": 0}, "max_batch=0; at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        HttpRetriever(**{"url": "http://localhost:8000/retrieve", **settings})
    assert message in str(e.value)


def test_remote_is_one_retriever_or_two() -> None:
    assert list(remote(url="http://localhost:1/retrieve")) == ["vdb"]
    assert list(remote(url="http://localhost:1/retrieve", web_url="http://localhost:2/retrieve")) == ["vdb", "web"]


async def test_a_key_goes_to_its_own_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS_KEY", "k-1")
    async with Server(answer) as server, Server(answer) as other:
        for web_url in (f"{server.url}/web", other.url):
            both = remote(url=server.url, web_url=web_url, retries=0, timeout_s=5.0, api_key_env="SERVERS_KEY")
            for retriever in both.values():
                await retriever.search("q", top_k=1)
                await retriever.close()
    assert ["authorization: bearer k-1" in head for head in server.heads] == [True] * 3
    assert ["authorization" in head for head in other.heads] == [False]


def test_the_preset_holds_every_key_with_its_default() -> None:
    preset = yaml.safe_load((Path(__file__).parents[2] / "configs/retriever/http.yaml").read_text())
    assert preset.pop("name") == "http"
    assert preset.pop("url") == "http://localhost:8000/retrieve"
    assert preset.pop("defaults") == ["_self_", {"web": "none"}]
    assert {**preset, "web": None} == remote.__kwdefaults__
    assert preset == {"web_url": None, **(HttpRetriever.__init__.__kwdefaults__ or {})}
