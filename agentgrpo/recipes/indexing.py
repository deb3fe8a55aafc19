"""A corpus into an index, batch by batch: what an interruption leaves is gone on with."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

from agentgrpo.errors import DataError
from agentgrpo.recipes.signals import StopRequest
from agentgrpo.records.bar import Bar
from agentgrpo.retrievers.base import Indexer
from agentgrpo.retrievers.corpus_file import CorpusFile

BATCH = 1000
"""Passages that are held in memory at a time."""
GRACE_S = 60.0
"""For what cannot be interrupted, after a signal."""


async def build_index(
    indexer: Indexer, corpus: CorpusFile, *, bar: Bar, batch: int = BATCH, now: Callable[[], float] = time.monotonic
) -> int:
    """The number of passages, all of which are in and can be searched.

    SIGINT and SIGTERM raise Preempted after the batch at hand: the same call goes on from there, as it does after a
    kill at any time. A second one ends the process (see StopRequest)."""
    began, before = now(), indexer.count
    with StopRequest("the same command goes on where it was", grace_s=GRACE_S, at_once=lambda: None) as stop:
        passages = corpus.passages()
        if before:
            bar.say(f"{before:,} passages are stored already; going on with the next one")
        indexer.resume(passages)
        while taken := list(islice(passages, batch)):
            stop.refuse_to_go_on()
            indexer.add(taken)
            bar.reached("stored", indexer.count, corpus.position, corpus.size)
        if not indexer.count:
            raise DataError(f"{corpus.path} has no passages; write one JSON object per line")

        def going_on(title: str, done: int, total: int) -> None:
            stop.refuse_to_go_on()
            bar.reached(title, done, done, total)

        stop.refuse_to_go_on()
        indexer.finish(going_on)
    seconds = now() - began
    rate = "" if before else f", {indexer.count / max(seconds, 1e-9):,.0f} a second"
    bar.say(f"{indexer.count:,} passages in {seconds:,.1f} s{rate}")
    return indexer.count
