"""A corpus, questions about it, and indexes of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentgrpo.config.build import build_node
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Indexer, Retriever
from agentgrpo.worlds.almanac.dataset import Almanac

HASHING = {"name": "hashing", "dim": 64}
FIRST = 1500
"""Passages of the corpus: few enough for a database of a test."""


@cache
def corpus(count: int = FIRST) -> tuple[Passage, ...]:
    """Of the embedded example, every tenth passage twice under another id: equal scores, which have to keep order."""
    rng = random.Random(7)
    found = list(Almanac().corpora()["vdb"][:count])
    rng.shuffle(found)
    twins = [Passage(id=f"{p.id}-again", text=p.text, title=p.title, url=p.url) for p in found[::10]]
    return (*found[: count - len(twins)], *twins)


@cache
def questions(count: int = 1000) -> tuple[str, ...]:
    """The task set's own, and passages as they are."""
    asked = [task.question for task in Almanac().split("train")]
    return tuple([*asked, *(p.text for p in corpus())][:count])


def index(
    node: Mapping[str, Any],
    passages: Sequence[Passage],
    out: Path | None = None,
    *,
    batch: int = 500,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Indexer:
    """As agentgrpo index does it; returns the indexer."""
    indexer: Indexer = build_node("indexer", node, out=out)
    rest = iter(passages)
    indexer.resume(rest)
    left = list(rest)
    for start in range(0, len(left), batch):
        indexer.add(left[start : start + batch])
        progress("stored", indexer.count, len(passages))
    indexer.finish(progress)
    return indexer


def rows_of(node: Mapping[str, Any], queries: Sequence[str], top_k: int = 10) -> list[list[Passage]]:
    """The rows of "vdb", opened and closed again."""

    async def ask() -> list[list[Passage]]:
        retriever: Retriever = build_node("retriever", node)["vdb"]
        try:
            return list(await asyncio.gather(*(retriever.search(query, top_k=top_k) for query in queries)))
        finally:
            await retriever.close()

    return asyncio.run(ask())


def refusal(node: Mapping[str, Any]) -> str:
    """What the probe of "vdb" says."""

    async def probe() -> str:
        retriever = build_node("retriever", node)["vdb"]
        try:
            await retriever.probe()
        except Exception as e:
            return f"{type(e).__name__}: {e}"
        finally:
            await retriever.close()
        return ""

    return asyncio.run(probe())


def ids(rows: Sequence[Sequence[Passage]]) -> list[list[str]]:
    return [[passage.id for passage in row] for row in rows]


def recall(exact: Sequence[Sequence[Passage]], found: Sequence[Sequence[Passage]]) -> float:
    """The share of the exact rows' passages that were found."""
    pairs = list(zip(ids(exact), ids(found), strict=True))
    return sum(len({*a} & {*b}) for a, b in pairs) / sum(len(a) for a, _ in pairs)
