"""Observations: blocks of lines, as trusted and untrusted pieces.

    <information>\\n[R1Q1D1] (Title: t) text URL: u\\n[R1Q1D2] text\\n</information>

Tags, labels and our own sentences are trusted; text written by a document or the policy is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agentgrpo.core.types import Passage, Piece
from agentgrpo.core.untrusted import unframed

Line: TypeAlias = tuple[Piece, ...]

NO_ACTION = "No action was found. Search or answer."
SEARCH_NOW = "Search now."
ANSWER_NOW = "Answer now."
SEARCH_FIRST = "Search before you answer."
INSUFFICIENT = "The evidence is insufficient. Search again."
LIMIT_REACHED = "The search limit is reached. Answer now."
PLATEAU = "The evidence no longer grows. Answer now."
LAST_CHANCE = "This is the last turn. Answer now."
NOTHING_TO_RERANK = "There is nothing to rerank."
NO_FETCHER = "Pages cannot be fetched here."
SHORTFALLS = {
    "no web": "There is no web search here: vdb answers.",
    "web failed": "The web search failed: vdb answers.",
    "web": "The budget for web searches is spent: vdb answers them.",
    "vdb": "The budget for searches is spent. Answer now.",
    "rerank": "The budget for reranking is spent.",
    "fetch": "The budget for pages is spent.",
}
"""Messages to a policy whose request cannot be served as asked. web, vdb, rerank, fetch: the episode has spent its
budget for them."""
UNCOVERED = "Not searched successfully yet:"

_NEWLINE = Piece("\n", True)


class Block(NamedTuple):
    """One tag around lines."""

    tag: str
    lines: Sequence[Line]


def sentence(text: str) -> Line:
    return (Piece(text, True),)


def pieces(blocks: Iterable[Block], tags: Sequence[str]) -> tuple[Piece, ...]:
    """Return the pieces of one or more blocks, one below the other. tags: names that untrusted text must not use as
    tags: a passage that closes its block could speak as the environment or the policy."""
    result: list[Piece] = []
    for tag, lines in blocks:
        result.append(Piece(f"<{tag}>\n", True))
        for i, line in enumerate(lines):
            if i:
                result.append(_NEWLINE)
            result.extend(piece if piece.trusted else Piece(unframed(piece.text, tags), False) for piece in line)
        result.append(Piece(f"\n</{tag}>\n", True))
    *before, last = result
    return (*before, Piece(last.text.removesuffix("\n"), True))


def bare(blocks: Iterable[Block]) -> tuple[Piece, ...]:
    """Return the lines of one or more blocks, one below the other, for a policy that writes no tags."""
    result: list[Piece] = []
    for _, lines in blocks:
        for line in lines:
            result += [_NEWLINE, *line] if result else line
    return tuple(result)


def document(marker: str, passage: Passage) -> Line:
    """One passage on one line; with title and URL if it has them."""
    title = f" (Title: {passage.title})" if passage.title else ""
    url = f" URL: {passage.url}" if passage.url else ""
    return Piece(marker, True), Piece(f"{title} {passage.text}{url}", False)


def nothing(number: int | None, markers: Sequence[str]) -> Line:
    """Return the line for a query that showed nothing. markers: labels of its results that were shown before. number:
    the query's number, if there are several."""
    text = f"Nothing new, see {' '.join(markers)}." if markers else "No results."
    return sentence(text if number is None else f"Query {number}: {text}")


def repeated(number: int | None, markers: Sequence[str]) -> Line:
    """Return the line for a repeated query, which is not sent again: it points to the earlier results."""
    text = f"Already searched, see {' '.join(markers)}." if markers else "Already searched, without results."
    return sentence(text if number is None else f"Query {number}: {text}")


def refused(number: int | None) -> Line:
    """Return the line for a query that is not sent because the limit is reached."""
    return sentence(LIMIT_REACHED if number is None else f"Query {number}: {LIMIT_REACHED}")


def not_fetched(num_pages: int) -> Line:
    return sentence(f"Pages not shown: {num_pages}. They failed, were shown before or are too many for one turn.")


def not_there(num_pages: int) -> Line:
    return sentence(f"Pages without that part or those words: {num_pages}.")


def evaluation(sufficient: bool) -> Line:
    return sentence(f"The evidence is {'sufficient' if sufficient else 'insufficient'}.")


def uncovered(subquestions: Mapping[str, str]) -> list[Line]:
    """Return a heading and "id: text" lines; [] without subquestions."""
    if not subquestions:
        return []
    return [sentence(UNCOVERED), *((Piece(f"{id_}: {text}", False),) for id_, text in subquestions.items())]
