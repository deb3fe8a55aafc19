"""Parses answers of retrieval servers defensively: any JSON in, passages or a typed error for each row out.

    POST /retrieve  {"queries": [...], "topk": n, "return_scores": true}  ->  {"result": [[item, ...], ...]}     batch
                    {"query": ..., "top_k": n}                            ->  {"results": [item, ...]}           single
    POST /fetch     {"urls": [...]}                                       ->  {"results": [document | null, ...]}
    POST /rerank    {"query": ..., "documents": [...], "top_k": n}        ->  {"scores": [...]}
                                                   or {"results": [{"index": i, "relevance_score": s}, ...]}

    item = {"document": document, "score": s} or a bare document, best first; document = see corpus.passage_of
    {"error": text} in place of a row or a page: only that row or page has failed

"result" and "results" are synonyms in every answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from agentgrpo.core.errors import RetrieverError, line_of
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import passage_of


def garbage(message: str) -> RetrieverError:
    return RetrieverError(message, kind="garbage")


def results_of(reply: Any) -> list[Any]:
    """The list under "result" or "results". Raises RetrieverError (garbage) if there is no list."""
    if isinstance(reply, dict):
        reply = reply.get("result", reply.get("results"))
    if not isinstance(reply, list):
        raise garbage("the reply has no list under result or results")
    return reply


def rows_of(reply: Any, num_queries: int, top_k: int) -> list[list[Passage] | RetrieverError]:
    """One row per query. A missing row is an error for its query. With too many rows the assignment to queries is
    unknown, and every row is an error."""
    rows = results_of(reply)
    if len(rows) > num_queries:
        return [garbage(f"{len(rows)} rows for {num_queries} queries")] * num_queries
    missing = garbage(f"only {len(rows)} rows for {num_queries} queries; this one is missing")
    return [row_of(row, top_k) for row in rows] + [missing] * (num_queries - len(rows))


def row_of(items: Any, top_k: int) -> list[Passage] | RetrieverError:
    if isinstance(items, dict) and isinstance(items.get("error"), str):
        return RetrieverError(f"the server could not answer this query: {items['error'][:200]}", kind="row")
    if not isinstance(items, list):
        return garbage(f"a row is a JSON {type(items).__name__}, not a list")
    try:
        return [_passage(item) for item in items[:top_k]]
    except ValueError as e:
        return garbage(f"a document is malformed: {e}")


def pages_of(reply: Any, urls: Sequence[str]) -> list[Passage | RetrieverError]:
    """One page per URL; null, {"error": ...} and a wrong number of pages are errors."""
    pages = results_of(reply)
    if len(pages) != len(urls):
        return [garbage(f"{len(pages)} pages for {len(urls)} URLs")] * len(urls)
    return [_page(page, url) for page, url in zip(pages, urls, strict=True)]


def scores_of(reply: Any, num_documents: int) -> list[float]:
    """One finite score per document. Raises RetrieverError (garbage)."""
    given = reply.get("scores") if isinstance(reply, dict) else None
    try:
        if given is None:
            by_index = {item["index"]: item["relevance_score"] for item in results_of(reply)}
            given = [by_index[i] for i in range(num_documents)]
        if len(given) != num_documents:
            raise ValueError(f"{len(given)} scores for {num_documents} documents")
        return [finite(score) for score in given]
    except (TypeError, KeyError, ValueError) as e:
        raise garbage(f"malformed scores: {line_of(e)}") from e


def _passage(item: Any) -> Passage:
    document = item.get("document", item) if isinstance(item, dict) else item
    if not isinstance(document, dict):
        raise ValueError(f"a JSON {type(document).__name__}, not an object")
    score = item.get("score")
    return dataclasses.replace(passage_of(document), score=None if score is None else finite(score))


def _page(page: Any, url: str) -> Passage | RetrieverError:
    if not isinstance(page, dict) or page.get("error"):
        reason = page.get("error") if isinstance(page, dict) else f"a JSON {type(page).__name__}"
        return RetrieverError(f"{url} could not be fetched: {reason}", kind="page")
    try:
        return dataclasses.replace(passage_of(page), id=url, url=url)
    except ValueError as e:
        return garbage(f"the page of {url} is malformed: {e}")


def finite(score: Any) -> float:
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ValueError(f"a score is a JSON {type(score).__name__}, not a number")
    try:
        value = float(score)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"a score is {score}, not a finite number")
    return value
