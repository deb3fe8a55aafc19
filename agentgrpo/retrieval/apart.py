"""A batch of queries of which one is refused: that one fails alone, and the others are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage

Row = list[Passage] | RetrieverError
Ask = Callable[[list[str]], Awaitable[Sequence[Row]]]

OF_QUERIES = ("RetrieverError", "http_4xx")
"""Kinds of failure that a query may be to blame for: an error of a backend's own, and a refusal."""


async def answered_apart(ask: Ask, queries: list[str]) -> list[Row]:
    """What `ask` answers, or where a batch of it has failed, what it answers to halves of it, down to the queries that
    fail alone. Where neither of the first two is answered, it is no query's fault, and nobody else is asked for."""
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
