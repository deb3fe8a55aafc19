"""Parses clients' requests defensively: any bytes in, a request or a refusal that says what is allowed out.

POST /retrieve  {"queries": [...], "topk"?: n, "return_scores"?: bool}     batch, as Search-R1's clients send it
                {"query": ..., "top_k"?: n}                                single
POST /rerank    {"query": ..., "documents": [...], "top_k"?: n}
"""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.core.untrusted import read_body
from agentgrpo.retrieval.corpus import well_formed

DEFAULT_TOP_K = 3
"""Default top_k, as on Search-R1's server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of one server. Raises ConfigError for a limit that is not above 0."""

    queries: int = 4096
    """Maximum queries in a request, or documents in a reranking request. Search-R1's default batch has 2,560
    queries."""
    top_k: int = 1000
    passages: int = 100_000
    """Maximum passages in an answer: queries times top_k."""
    query_chars: int = 16_384
    body_bytes: int = 8 * 2**20
    head_s: float = 10.0
    """Seconds for a request's head to arrive, from its first byte or from the client's connection."""
    body_s: float = 30.0
    """Seconds for a body to arrive, so that a slow client cannot hold a connection forever."""
    waiting: int = 8192
    """Maximum queries in progress or waiting; further requests get HTTP 503 with Retry-After."""
    connections: int = field(default_factory=lambda: _files() // 2)
    """Maximum open connections. The process's other file descriptors are left for its index."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                raise ConfigError(f"a limit of {limit.name} {getattr(self, limit.name)}; more than 0 is allowed")


def _files() -> int:
    """Maximum number of files that this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**17 if soft == resource.RLIM_INFINITY else soft


class RequestRefused(Exception):
    """A refused request. The message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    queries: Sequence[str | RequestRefused]
    """Texts; a refused query stays in its place as RequestRefused, and the other queries are answered."""
    top_k: int
    return_scores: bool = True
    single: bool = False
    """True for a single query, whose answer is a single row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    query: str
    documents: Sequence[str]
    top_k: int


def search_of(body: bytes, limits: RequestLimits) -> SearchRequest:
    """Parse a search request. Raises RequestRefused."""
    asked = _object(body)
    if "queries" in asked:
        queries = [_of_batch(query, i, limits) for i, query in enumerate(_list(asked["queries"], "queries", limits))]
        top_k = _top_k(asked.get("topk", asked.get("top_k")), limits)
        return_scores = asked.get("return_scores", False)
        if not isinstance(return_scores, bool):
            raise RequestRefused(422, f"return_scores is a JSON {_kind(return_scores)}; true and false are allowed")
        _refuse_too_many(len(queries), top_k, limits)
        return SearchRequest(queries=queries, top_k=top_k, return_scores=return_scores)
    if "query" not in asked:
        raise RequestRefused(
            422, 'neither queries nor query; ask {"queries": [...], "topk": 3, "return_scores": true} or {"query": ...}'
        )
    query = _query(asked["query"], limits)
    top_k = _top_k(asked.get("top_k", asked.get("topk")), limits)
    _refuse_too_many(1, top_k, limits)
    return SearchRequest(queries=[query], top_k=top_k, single=True)


def _refuse_too_many(queries: int, top_k: int, limits: RequestLimits) -> None:
    if queries * top_k > limits.passages:
        raise RequestRefused(
            413,
            f"{queries} queries with top_k {top_k}, {queries * top_k} passages; at most {limits.passages} are allowed "
            "in a request; send several, or ask for fewer passages",
        )


def ranking_of(body: bytes, limits: RequestLimits) -> Ranking:
    """Parse a reranking request. Raises RequestRefused."""
    asked = _object(body)
    for key in ("query", "documents"):
        if key not in asked:
            raise RequestRefused(422, f'no {key}; ask {{"query": ..., "documents": [...], "top_k": 3}}')
    documents = [_text(d, f"documents[{i}]") for i, d in enumerate(_list(asked["documents"], "documents", limits))]
    top_k = asked.get("top_k")
    top_k = len(documents) if top_k is None else _top_k(top_k, limits)
    return Ranking(query=_query(asked["query"], limits), documents=documents, top_k=top_k)


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = read_body(body)
    except (ValueError, RecursionError) as e:
        raise RequestRefused(400, f"the body is no JSON: {e}; send an object, as application/json") from e
    if not isinstance(asked, dict):
        raise RequestRefused(422, f"the body is a JSON {_kind(asked)}; an object is allowed")
    return asked


def _list(given: Any, field: str, limits: RequestLimits) -> list[Any]:
    if not isinstance(given, list):
        raise RequestRefused(422, f"{field} is a JSON {_kind(given)}; a list of strings is allowed")
    if len(given) > limits.queries:
        raise RequestRefused(
            413, f"{len(given)} {field}; at most {limits.queries} are allowed in a request; send several"
        )
    return given


def _text(given: Any, field: str) -> str:
    if not isinstance(given, str):
        raise RequestRefused(422, f"{field} is a JSON {_kind(given)}; a string is allowed")
    return well_formed(given)


def _query(given: Any, limits: RequestLimits, field: str = "query") -> str:
    query = _text(given, field)
    if len(query) > limits.query_chars:
        raise RequestRefused(413, f"a query of {len(query)} characters; at most {limits.query_chars} are allowed")
    return query


def _of_batch(given: Any, position: int, limits: RequestLimits) -> str | RequestRefused:
    try:
        return _query(given, limits, f"queries[{position}]")
    except RequestRefused as refused:
        return refused


def _top_k(given: Any, limits: RequestLimits) -> int:
    """Parse top_k; 0 and null mean the default, as on Search-R1's server."""
    if given is None or (given == 0 and not isinstance(given, bool)):
        return min(DEFAULT_TOP_K, limits.top_k)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= limits.top_k:
        raise RequestRefused(422, f"top_k {_shown(given)}; a whole number from 1 to {limits.top_k} is allowed")
    return given


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _kind(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


# --- The server's answers: passages as documents, which `corpus.passage_of` turns back into the same passages.
#
# passage  {"id", "contents": '"Title"\ntext', "url"?}        contents as in Search-R1's corpora


def document_of(passage: Passage) -> dict[str, str]:
    """contents always begin with a title line, even if the title is "", because Search-R1's clients remove the first
    line."""
    on_a_line = " ".join(passage.title.split("\n"))
    document = {"id": passage.id, "contents": f'"{on_a_line}"\n{passage.text}'}
    if passage.title != on_a_line:
        document["title"] = passage.title
    if passage.url:
        document["url"] = passage.url
    return document


def row_of(passages: Sequence[Passage], *, return_scores: bool) -> list[dict[str, Any]]:
    """Passages best first, as {"document", "score"} or bare documents. A passage without a score gets no "score"."""
    if not return_scores:
        return [document_of(passage) for passage in passages]
    return [_item(passage) for passage in passages]


def _item(passage: Passage) -> dict[str, Any]:
    item: dict[str, Any] = {"document": document_of(passage)}
    if passage.score is not None:
        item["score"] = passage.score
    return item


def asked_again(documents: Sequence[str]) -> list[Passage]:
    """The documents of a reranking request as passages; their ids are their positions."""
    return [Passage(id=str(i), text=text) for i, text in enumerate(documents)]


def ranking_document(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    return [{"index": int(passage.id), "relevance_score": passage.score or 0.0} for passage in passages]
