"""What the server says: passages as documents, so that `corpus.passage_of` gives the very same passages back.

passage  {"id", "contents": '"Title"\\ntext', "url"?}        contents as Search-R1's corpora have them"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgrpo.types import Passage


def document_of(passage: Passage) -> dict[str, str]:
    """contents open with the title in every document, "" where there is none: the clients of Search-R1 take the first
    line off, whatever it is."""
    on_a_line = " ".join(passage.title.split("\n"))
    document = {"id": passage.id, "contents": f'"{on_a_line}"\n{passage.text}'}
    if passage.title != on_a_line:
        document["title"] = passage.title
    if passage.url:
        document["url"] = passage.url
    return document


def row_of(passages: Sequence[Passage], *, return_scores: bool) -> list[dict[str, Any]]:
    """Best first: {"document", "score"}, or bare documents. A passage that has no score is given none."""
    if not return_scores:
        return [document_of(passage) for passage in passages]
    return [_item(passage) for passage in passages]


def _item(passage: Passage) -> dict[str, Any]:
    item: dict[str, Any] = {"document": document_of(passage)}
    if passage.score is not None:
        item["score"] = passage.score
    return item


def asked_again(documents: Sequence[str]) -> list[Passage]:
    """The documents of a reranking as passages; their ids are their positions."""
    return [Passage(id=str(i), text=text) for i, text in enumerate(documents)]


def ranking_of(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    return [{"index": int(passage.id), "relevance_score": passage.score or 0.0} for passage in passages]
