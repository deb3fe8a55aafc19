"""Isolates a refused query of a batch: it fails alone, and the others are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage

Row = list[Passage] | RetrieverError
Ask = Callable[[list[str]], Awaitable[Sequence[Row]]]

OF_QUERIES = ("RetrieverError", "http_4xx")
"""Kinds of failure that a query may cause: an error of the backend itself, and a refusal."""


async def answered_apart(ask: Ask, queries: list[str]) -> list[Row]:
    """The rows of `ask`. A failed batch is sent again in halves, down to single queries that fail alone. If the first
    two queries both fail, no query is to blame: the remaining ones get the same error without being sent."""
    rows: list[Row] = []
    parts = [queries]
    while parts:
        part = parts.pop(0)
        middle = len(part) // 2
        try:
            rows += await ask(part)
        except RetrieverError as e:
            if not middle or e.kind not in OF_QUERIES:
                rows += [e] * len(part)
            else:
                parts[:0] = [part[:middle], part[middle:]]
        if len(rows) == 2 and all(isinstance(row, RetrieverError) for row in rows):
            rows += [rows[-1]] * sum(map(len, parts))
            break
    return rows
