"""Both directions of the wire, without a socket."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval import wire
from agentgrpo.retrieval.corpus import passage_of, well_formed
from agentgrpo.retrieval.server.app import Traffic, _written
from agentgrpo.retrieval.server.questions import (
    Ranking,
    RequestLimits,
    RequestRefused,
    SearchRequest,
    document_of,
    ranking_of,
    row_of,
    search_of,
)

TEXT = st.text(st.sampled_from('ab"\n\r\\ é\u2028\U0001f30a{}') | st.characters(codec="utf-8"), max_size=30)


@given(id=st.text(st.characters(codec="utf-8"), min_size=1), text=TEXT, title=TEXT, url=TEXT, score=st.floats())
def test_every_passage_comes_back_as_it_was(id: str, text: str, title: str, url: str, score: float) -> None:
    passage = Passage(id=id, text=text, title=title, url=url, score=score)
    if not (title + text).strip():
        passage = dataclasses.replace(passage, text=f"{text}x")
    sent = json.loads(json.dumps(document_of(passage)))
    assert dataclasses.replace(passage_of(sent), score=score) == passage
    [row] = json.loads(json.dumps({"result": [row_of([dataclasses.replace(passage, score=0.1)], return_scores=True)]}))[
        "result"
    ]
    assert wire.row_of(row, 1) == [dataclasses.replace(passage, score=0.1)]


def test_the_first_line_of_a_document_is_its_title_whatever_it_is() -> None:
    documents = [
        document_of(Passage(id="1", text="text")),
        document_of(Passage(id="2", text='"no\ntitle"', title="A\nB", url="u")),
    ]
    assert documents == [
        {"id": "1", "contents": '""\ntext'},
        {"id": "2", "contents": '"A B"\n"no\ntitle"', "title": "A\nB", "url": "u"},
    ]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["queries", "query", "topk", "top_k", "return_scores", "documents"])


def status_of(read: Callable[[bytes, RequestLimits], object], body: bytes) -> int:
    try:
        read(body, RequestLimits())
    except RequestRefused as e:
        return e.status if str(e) else 0
    return 200


@given(st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_a_question_or_refused(body: bytes) -> None:
    assert {status_of(read, body) for read in (search_of, ranking_of)} <= {200, 400, 413, 422}


@given(st.dictionaries(FIELDS, JSON | st.integers(0, 12) | st.lists(TEXT, max_size=4)))
def test_what_is_taken_is_within_the_limits(asked: dict[str, Any]) -> None:
    limits = RequestLimits(queries=3, top_k=10, query_chars=20)
    try:
        found = search_of(json.dumps(asked).encode(), limits)
    except RequestRefused:
        return
    assert len(found.queries) <= 3
    assert 1 <= found.top_k <= 10
    assert found.single == ("queries" not in asked)
    given_queries = [asked["query"]] if found.single else asked["queries"]
    assert len(found.queries) == len(given_queries)
    for taken, query in zip(found.queries, given_queries, strict=True):
        is_taken = isinstance(query, str) and len(query) <= 20
        assert taken == well_formed(query) if is_taken else isinstance(taken, RequestRefused)


def test_questions_and_their_defaults() -> None:
    limits = RequestLimits()
    cases: dict[str, SearchRequest | Ranking] = {
        '{"queries": ["a", "b"], "topk": 5, "return_scores": true}': SearchRequest(queries=["a", "b"], top_k=5),
        '{"queries": []}': SearchRequest(queries=[], top_k=3, return_scores=False),
        '{"queries": ["a"], "topk": 0}': SearchRequest(queries=["a"], top_k=3, return_scores=False),
        '{"query": "a\\ud800"}': SearchRequest(queries=["a\ufffd"], top_k=3, single=True),
        '{"query": "a", "top_k": 1, "more": 1}': SearchRequest(queries=["a"], top_k=1, single=True),
    }
    assert {text: search_of(text.encode(), limits) for text in cases} == cases
    assert search_of(b'{"query": "a"}', RequestLimits(top_k=2)).top_k == 2
    assert ranking_of(b'{"query": "a", "documents": ["b", "c"]}', limits) == Ranking(
        query="a", documents=["b", "c"], top_k=2
    )


@pytest.mark.parametrize(
    "name", ["queries", "top_k", "query_chars", "body_bytes", "head_s", "body_s", "waiting", "connections"]
)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"a limit of {name} 0; more than 0 is allowed"):
        RequestLimits(**{name: 0})


def test_the_line_for_many_requests() -> None:
    times = iter([0.0, 0.001, 1.0, 1.002, 2.0, 2.5, 3.0, 3.01])
    lines: list[str] = []
    traffic = Traffic(limits=RequestLimits(waiting=5), log_every=4, now=lambda: next(times), say=lines.append)
    with traffic.request(), traffic.queries(3), traffic.queries(2):
        assert traffic.waiting == 5
    with pytest.raises(RequestRefused), traffic.request():
        raise RequestRefused(422, "no")
    with pytest.raises(RequestRefused), traffic.request():
        raise RequestRefused(500, "no")
    assert lines == []
    with pytest.raises(ZeroDivisionError), traffic.request():
        raise ZeroDivisionError
    assert lines == ["4 requests, 5 queries, p50 2.0 ms, p99 10.0 ms, at most 5 queries at once, 1 refused, 2 failed"]
    assert traffic.waiting == 0


def test_an_answer_has_an_end() -> None:
    limits = RequestLimits(passages=12)

    def body(queries: int, top_k: int) -> bytes:
        return json.dumps({"queries": ["q"] * queries, "topk": top_k}).encode()

    assert search_of(body(4, 3), limits) == SearchRequest(queries=["q"] * 4, top_k=3, return_scores=False)
    for asked, said in (
        (body(5, 3), "5 queries with top_k 3, 15 passages; at most 12 are allowed in a request; send several"),
        (b'{"query": "q", "top_k": 13}', "1 queries with top_k 13, 13 passages; at most 12 are allowed"),
    ):
        with pytest.raises(RequestRefused, match=said) as e:
            search_of(asked, limits)
        assert e.value.status == 413
    assert len(search_of(body(2560, 3), RequestLimits()).queries) == 2560, "the default batch of Search-R1"
    with pytest.raises(RequestRefused, match="at most 100000 are allowed"):
        search_of(body(101, 1000), RequestLimits())


@given(JSON, st.lists(JSON))
def test_answers_are_written_as_json_dumps_writes_them(value: Any, rows: list[Any]) -> None:
    for answer in ({"results": value}, {"result": rows}, {"result": []}):
        assert _written(answer) == json.dumps(answer)
