"""The retrieval server over real sockets: our client, Search-R1's, and clients that do what they should not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.batching import Batched
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.retrieval.http import HttpReranker, HttpRetriever
from agentgrpo.retrieval.rerank import LexicalReranker
from agentgrpo.retrieval.server.questions import RequestLimits
from tests.builders import passage
from tests.retrieval.serving.running_app import Scripted, ask, passages2string, served

CORPUS = [
    passage("1", "Velmor was founded by Castin.", title="Velmor"),
    passage("2", "Castin lives in Roka.", title='A "quoted" title', url="http://a.b/c?d=e"),
    passage("3", '"Not a title"\nVelmor lies by the sea.'),
    passage("4", "Velmor\u2028lies \x00 by the \U0001f30a sea", title="A\nB\r"),
    passage("5", "", title="Velmor and the founder"),
    passage("6", '""\nfounded', title='"'),
]
QUERIES = ["who founded Velmor", "sea", "Castin", "nothing of this kind", ""]


def client(url: str, **settings: Any) -> HttpRetriever:
    return HttpRetriever(url=url, **{"timeout_s": 10.0, "backoff_s": 0.01, "trust_env": False, **settings})


# --- the same passages as in this process


@pytest.mark.parametrize("protocol", ["batch", "single"])
async def test_our_client_gets_what_a_search_in_process_gets(protocol: str) -> None:
    here = embedded(corpora={"vdb": CORPUS, "web": CORPUS}, dim=64)
    async with served(embedded(corpora={"vdb": CORPUS, "web": CORPUS}, dim=64)) as (url, _):
        for name, path in (("vdb", "/retrieve"), ("web", "/web/retrieve")):
            there = client(url + path, protocol=protocol)
            for top_k in (1, 6):
                rows = await asyncio.gather(*(there.search(q, top_k=top_k) for q in QUERIES))
                assert rows == [await here[name].search(q, top_k=top_k) for q in QUERIES]
                assert sum(map(len, rows)) > top_k
            await there.close()
    for retriever in here.values():
        await retriever.close()


async def test_a_client_of_search_r1_reads_it_as_it_reads_its_own_server() -> None:
    async with served(embedded(corpora={"vdb": CORPUS}, dim=64)) as (url, _):
        status, reply, headers = await ask(
            f"{url}/retrieve",
            {"queries": ["Velmor was founded by Castin", "who lives in Roka"], "topk": 1, "return_scores": True},
        )
    assert (status, headers["content-type"], len(reply["result"])) == (200, "application/json", 2)
    assert passages2string(reply["result"][0]) == 'Doc 1(Title: "Velmor") Velmor was founded by Castin.\n'
    assert passages2string(reply["result"][1]) == 'Doc 1(Title: "A "quoted" title") Castin lives in Roka.\n'
    assert [list(item) for row in reply["result"] for item in row] == [["document", "score"]] * 2
    assert all(isinstance(row[0]["score"], float) for row in reply["result"])


async def test_without_scores_rows_are_bare_documents_and_three_of_them() -> None:
    """As the server of Search-R1 has it."""
    backend = Scripted(lambda query: CORPUS)
    async with served({"vdb": Batched(backend)}) as (url, _):
        _, reply, _ = await ask(f"{url}/retrieve", {"queries": ["a"]})
        _, same, _ = await ask(f"{url}/retrieve", {"queries": ["a"], "topk": None, "return_scores": False})
    assert [document["id"] for document in reply["result"][0]] == ["1", "2", "3"]
    assert reply == same
    assert reply["result"][0][0] == {"id": "1", "contents": '"Velmor"\nVelmor was founded by Castin.'}


async def test_our_reranker_gets_what_the_servers_gives_in_process() -> None:
    lexical = LexicalReranker(thesaurus={"headquarters": ["main", "office", "near"]})
    async with served({}, lexical) as (url, _):
        there = HttpReranker(url=f"{url}/rerank", trust_env=False)
        asked = [p for p in CORPUS if not p.title]
        asked += [passage("x", "The main office of Velmor is near Roka."), passage("y", "the headquarters", score=1.0)]
        for top_k in (2, 4):
            assert await there.rerank("headquarters of Velmor", asked, top_k=top_k) == await lexical.rerank(
                "headquarters of Velmor", asked, top_k=top_k
            )
        _, best, _ = await ask(f"{url}/rerank", {"query": "sea", "documents": ["a", "the sea", "b"], "top_k": 1})
        assert best == {"results": [{"index": 1, "relevance_score": 1.0}]}
        assert (await ask(f"{url}/rerank", {"query": "sea", "documents": []}))[1] == {"results": []}
        await there.close()


# --- many at once


async def test_queries_of_requests_that_are_open_together_become_one_batch() -> None:
    gate = threading.Event()

    def answer(query: str) -> list[Passage]:
        if query == "first":
            assert gate.wait(60)
        return [passage(query, "text")]

    backend = Scripted(answer)
    async with served({"vdb": Batched(backend, cache_size=0)}) as (url, app):
        first = asyncio.create_task(ask(f"{url}/retrieve", {"query": "first"}))
        await _until(lambda: bool(backend.batches))
        others = [asyncio.create_task(ask(f"{url}/retrieve", {"queries": [f"{i}a", f"{i}b"]})) for i in range(3)]
        await _until(lambda: app.traffic.waiting == 7)
        gate.set()
        await first
        replies = [await other for other in others]
    assert [[row[0]["id"] for row in reply["result"]] for _, reply, _ in replies] == [
        [f"{i}a", f"{i}b"] for i in range(3)
    ]
    assert backend.batches[0] == ["first"]
    assert sorted(backend.batches[1]) == sorted(f"{i}{x}" for i in range(3) for x in "ab")
    assert len(backend.batches) == 2


async def test_a_signal_stops_it_after_what_was_asked() -> None:
    gate, backend = threading.Event(), Scripted(lambda query: [passage(query, "text")])
    slow = Scripted(lambda query: [passage(query, "text")] if gate.wait(60) else [])
    async with served({"vdb": Batched(slow), "web": Batched(backend)}) as (url, app):
        asked = asyncio.create_task(ask(f"{url}/retrieve", {"query": "q"}))
        await _until(lambda: app.traffic.waiting == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await _until_refused(url)
        assert not asked.done()
        gate.set()
        assert (await asked)[1]["results"][0]["document"]["id"] == "q"
    assert backend.batches == []


# --- what fails


async def test_a_query_that_fails_fails_alone() -> None:
    bad = RetrieverError("the index\nis upset", kind="garbage")
    backend = Scripted(lambda query: bad if query == "b" else [passage(query, "text", score=0.5)])
    async with served({"vdb": Batched(backend)}, limits=RequestLimits(query_chars=9)) as (url, app):
        there = client(f"{url}/retrieve")
        asked = ("a", "b", "c", "much too long")
        rows = await asyncio.gather(*(there.search(q, top_k=1) for q in asked), return_exceptions=True)
        await there.close()
        status, reply, _ = await ask(f"{url}/retrieve", {"queries": ["b", "b"]})
    assert [row if isinstance(row, list) else (str(row), row.kind) for row in rows] == [  # type: ignore[union-attr]
        [passage("a", "text", score=0.5)],
        ("the server could not answer this query: the index is upset", "row"),
        [passage("c", "text", score=0.5)],
        ("the server could not answer this query: a query of 13 characters; at most 9 are allowed", "row"),
    ]
    assert (status, reply) == (500, {"error": "the index is upset"})
    assert dict(app.traffic.counts) == {"requests": 2, "queries": 6, "refused": 0, "failed": 1}


async def test_queries_that_are_no_text_or_that_a_backend_cannot_take_fail_alone() -> None:
    def answer(query: str) -> list[Passage]:
        if query == "bug":
            raise ZeroDivisionError("1/0")
        if query == "long":
            raise RetrieverError("HTTP 400", kind="http_4xx")
        return [passage(query, "text")]

    async with served({"vdb": Batched(Scripted(answer))}) as (url, _):
        status, reply, _ = await ask(f"{url}/retrieve", {"queries": ["a", 7, "bug", "", None, "long", "b"]})
        there = client(f"{url}/retrieve")
        with pytest.raises(RetrieverError, match="HTTP 422"):
            await there.search("long", top_k=1)
        await there.close()
    assert status == 200
    assert [row.get("error") if isinstance(row, dict) else row[0]["id"] for row in reply["result"]] == [
        "a",
        "queries[1] is a JSON number; a string is allowed",
        "retriever: ZeroDivisionError: 1/0 (test_app.py:166 in answer)",
        "",
        "queries[4] is a JSON null; a string is allowed",
        "HTTP 400",
        "b",
    ]
    assert there.counts == {"requests": 1, "http_4xx": 1}


async def test_a_query_that_fills_the_body_is_refused_alone_and_at_once() -> None:
    async with served(
        {"vdb": Batched(Scripted(lambda q: [passage(q, "text")]))}, limits=RequestLimits(body_bytes=999)
    ) as (
        url,
        app,
    ):
        there = client(f"{url}/retrieve")
        asked = ("a", "b", "c" * 1000, "d")
        rows = await asyncio.gather(*(there.search(q, top_k=1) for q in asked), return_exceptions=True)
        await there.close()
    assert [row.kind if isinstance(row, RetrieverError) else row[0].id for row in rows] == ["a", "b", "http_4xx", "d"]  # type: ignore[index]
    assert dict(there.counts) == {"requests": 5, "http_4xx": 3}
    assert app.traffic.counts["refused"] == 3


async def test_an_index_that_is_missing_is_an_error_that_says_so() -> None:
    class Broken:
        async def search(self, query: str, *, top_k: int) -> list[Passage]:
            raise ConfigError("the index X is not there; build it: agentgrpo index")

        async def close(self) -> None: ...

    async with served({"vdb": Broken()}) as (url, _):
        assert (await ask(f"{url}/retrieve", {"query": "q"}))[:2] == (
            500,
            {"error": "the index X is not there; build it: agentgrpo index"},
        )


SHOWN = "; allowed are POST /retrieve, GET /health"
REFUSALS: dict[str, tuple[object, int, str]] = {
    "no JSON": (b"{'queries'", 400, "the body is no JSON: "),
    "no UTF-8": (b'{"query": "\xff"}', 400, "the body is no JSON: 'utf-8' codec can't decode"),
    "nothing": (b"", 400, "the body is no JSON: Expecting value"),
    "too deep": (b"[" * 15_000, 400, "the body is no JSON: "),
    "a number of 5,000 digits": (b'{"topk": ' + b"9" * 5000 + b"}", 400, "the body is no JSON: "),
    "a list": ([], 422, "the body is a JSON array; an object is allowed"),
    "null": (b"null", 422, "the body is a JSON null; an object is allowed"),
    "nothing asked": ({}, 422, 'neither queries nor query; ask {"queries": [...], "topk": 3, "return_scores": true}'),
    "one query as queries": ({"queries": "q"}, 422, "queries is a JSON string; a list of strings is allowed"),
    "queries of another kind": ({"queries": [7, None]}, 422, "queries[0] is a JSON number; a string is allowed"),
    "no query": ({"query": None}, 422, "query is a JSON null; a string is allowed"),
    "a long query": ({"query": "q" * 101}, 413, "a query of 101 characters; at most 100 are allowed"),
    "too many": ({"queries": ["q"] * 9}, 413, "9 queries; at most 8 are allowed in a request; send several"),
    "top_k 0.5": ({"query": "q", "top_k": 0.5}, 422, "top_k 0.5; a whole number from 1 to 20 is allowed"),
    "top_k true": ({"query": "q", "top_k": True}, 422, "top_k true; a whole number"),
    "top_k -1": ({"queries": [], "topk": -1}, 422, "top_k -1; a whole number"),
    "top_k 21": ({"queries": [], "topk": 21}, 422, "top_k 21; a whole number from 1 to 20 is allowed"),
    "top_k in words": ({"query": "q", "top_k": "x" * 99}, 422, f'top_k "{"x" * 39}...; a whole number'),
    "scores in words": ({"queries": [], "return_scores": "yes"}, 422, "return_scores is a JSON string; true and false"),
    "a large body": (b" " * 20_001, 413, "a body of more than 20000 bytes; send several"),
}


async def test_what_is_refused_and_how_that_is_said() -> None:
    backend = Scripted(lambda query: CORPUS)
    limits = RequestLimits(queries=8, top_k=20, query_chars=100, body_bytes=20_000)
    said: dict[str, tuple[int, bool]] = {}
    async with served({"vdb": Batched(backend)}, limits=limits) as (url, app):
        for name, (body, _, message) in REFUSALS.items():
            status, reply, _ = await ask(f"{url}/retrieve", body)
            said[name] = (status, reply["error"].startswith(message))
        counts = dict(app.traffic.counts)
        assert (await ask(f"{url}/retrieve", {"queries": []}))[1] == {"result": []}
        nowhere = await ask(f"{url}/search", {})
        no_post = await ask(f"{url}/retrieve", None, "GET")
    assert said == {name: (status, True) for name, (_, status, _) in REFUSALS.items()}
    assert counts == {"requests": len(REFUSALS), "queries": 2, "refused": len(REFUSALS), "failed": 0}
    assert (nowhere[0], nowhere[1]["error"]) == (404, f"POST /search: Not Found{SHOWN}")
    assert (no_post[0], no_post[1]["error"]) == (405, f"GET /retrieve: Method Not Allowed{SHOWN}")
    assert backend.batches == []


async def test_who_comes_while_too_many_wait_is_told_to_come_again() -> None:
    gate = threading.Event()
    backend = Scripted(lambda query: CORPUS if gate.wait(60) else [])
    async with served({"vdb": Batched(backend)}, limits=RequestLimits(waiting=2)) as (url, app):
        first = asyncio.create_task(ask(f"{url}/retrieve", {"queries": ["a", "b"]}))
        await _until(lambda: app.traffic.waiting == 2)
        status, reply, headers = await ask(f"{url}/retrieve", {"query": "c"})
        assert (status, reply) == (503, {"error": "2 queries are waiting already; retry in a second"})
        assert headers["retry-after"] == "1"
        there = client(f"{url}/retrieve", backoff_s=0.01)
        patient = asyncio.create_task(there.search("c", top_k=1))
        await _until(lambda: there.counts["refused"] == 1)
        gate.set()
        assert await patient == CORPUS[:1]
        assert (await first)[0] == 200
        assert (await ask(f"{url}/retrieve", {"queries": ["d"] * 3}))[0] == 200  # alone, it may be as large as it is
        await there.close()


async def test_a_body_that_never_ends_and_a_client_that_leaves() -> None:
    async with served({"vdb": Batched(Scripted(lambda query: CORPUS))}, limits=RequestLimits(body_s=0.3)) as (url, app):
        host, port = url.removeprefix("http://").split(":")
        head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        reply = await reader.readuntil(b"}")
        assert reply.startswith(b"HTTP/1.1 408")
        assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"error": "no complete body within 0.3 s"}
        writer.close()
        _, leaver = await asyncio.open_connection(host, int(port))
        leaver.write(head)
        await leaver.drain()
        leaver.transport.abort()
        await _until(lambda: app.traffic.counts["requests"] == 2)
        assert (await ask(f"{url}/retrieve", {"query": "q"}))[0] == 200
        assert dict(app.traffic.counts) == {"requests": 3, "queries": 1, "refused": 2, "failed": 0}


@asynccontextmanager
async def dripping(url: str, count: int, head: bytes) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """So many connections that send `head` and then a byte every 20 ms; each task ends with what it is told."""
    host, port = url.removeprefix("http://").split(":")

    async def drip() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        told = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            writer.write(head)
            while not told.done():
                writer.write(b"a")
                await writer.drain()
                await asyncio.wait((told,), timeout=0.02)
        writer.transport.abort()
        return b"" if isinstance((await asyncio.gather(told, return_exceptions=True))[0], OSError) else told.result()

    tasks = [asyncio.create_task(drip()) for _ in range(count)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


SLOW_HEAD = b"POST /retrieve HTTP/1.1\r\nX-Slow: "
SLOW_BODY = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize("head", [SLOW_HEAD, SLOW_BODY, b""])
async def test_clients_that_drip_leave_and_hold_up_nobody(head: bytes) -> None:
    limits = RequestLimits(head_s=0.5, body_s=0.5, connections=32)
    async with (
        served({"vdb": Batched(Scripted(lambda query: CORPUS))}, limits=limits) as (url, _),
        dripping(url, 64, head) as slow,
    ):
        await asyncio.sleep(0.1)
        for i in range(20):
            assert (await asyncio.wait_for(ask(f"{url}/retrieve", {"query": str(i)}), 60))[0] == 200
        told = await asyncio.wait_for(asyncio.gather(*slow), 60)
        assert {reply[:12] for reply in told} <= {b"", b"HTTP/1.1 408", b"HTTP/1.1 400"}


async def test_who_waits_for_an_answer_is_not_the_one_that_has_to_leave() -> None:
    gate = threading.Event()
    slow = Scripted(lambda query: CORPUS if gate.wait(60) else [])
    limits = RequestLimits(head_s=60, connections=2)
    async with served({"vdb": Batched(slow)}, limits=limits) as (url, app), dripping(url, 1, SLOW_HEAD) as dripped:
        await asyncio.sleep(0.05)
        asked = [asyncio.create_task(ask(f"{url}/retrieve", {"query": str(i)})) for i in range(2)]
        await _until(lambda: app.traffic.waiting == 2)
        assert await dripped[0] == b""
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
        writer.close()
        gate.set()
        assert [(await task)[0] for task in asked] == [200, 200]


async def test_a_client_that_comes_again_on_its_connection_has_the_time_of_each_request_anew() -> None:
    limits = RequestLimits(head_s=0.3)
    async with served({"vdb": Batched(Scripted(lambda query: CORPUS))}, limits=limits) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.4)
        writer.close()


# --- health and log


async def test_health_says_what_it_answers_and_has_done() -> None:
    backends = {"vdb": Batched(Scripted(lambda query: CORPUS)), "web": Batched(Scripted(lambda query: CORPUS))}
    async with served(backends, LexicalReranker()) as (url, _):
        await ask(f"{url}/retrieve", {"queries": ["a", "b"]})
        await ask(f"{url}/web/retrieve", {"queries": "a"})
        assert (await ask(f"{url}/health", None, "GET"))[:2] == (
            200,
            {
                "status": "ok",
                "paths": ["/rerank", "/retrieve", "/web/retrieve"],
                "waiting": 0,
                "requests": 2,
                "queries": 2,
                "refused": 1,
                "failed": 0,
            },
        )


async def test_a_line_for_many_requests_and_none_for_one(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    async with served({"vdb": Batched(Scripted(lambda q: CORPUS))}, log_every=3, say=lines.append) as (url, _):
        for number in range(5):
            await ask(f"{url}/retrieve", {"queries": ["a"] * number})
    assert [line.split(", p50")[0] for line in lines] == ["3 requests, 3 queries"]
    assert capfd.readouterr() == ("", "")


async def _until_refused(url: str) -> None:
    """Nothing is asked on the connections that are still taken in. One that waits while the port is closed is reset."""
    host, port = url.removeprefix("http://").split(":")
    async with asyncio.timeout(60):
        with suppress(ConnectionRefusedError, ConnectionResetError):
            while True:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.transport.abort()
                await asyncio.sleep(0.005)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is another thread's, or a socket's
            await asyncio.sleep(0.005)
