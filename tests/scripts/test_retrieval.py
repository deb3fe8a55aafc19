"""The bench of indexes: the same corpus for everybody, and clients that wait for their answers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import clients
import passages
import pytest

from agentgrpo.retrieval.corpus import CorpusFile
from agentgrpo.retrieval.index.passages import PassageFile


@pytest.mark.slow
def test_a_corpus_is_the_same_every_time_and_large_words_are_rare(tmp_path: Path) -> None:
    for name in ("a", "b"):
        passages.write_corpus(tmp_path / name, 300)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with CorpusFile(tmp_path / "a") as corpus:
        found = list(corpus.passages())
    assert [p.id for p in found] == [str(i) for i in range(300)]
    assert {len(p.text.split()) for p in found} == set(range(28, 58))
    words = [word for p in found for word in p.text.split()]
    assert len(set(words)) > len(words) / 10
    assert words.count(max(set(words), key=words.count)) > len(words) / 20
    queries = passages.queries_of(PassageFile.of_file(tmp_path / "a"), 50)
    assert len(set(queries)) == len(queries) == 50
    assert all(any(set(query.split()) <= set(p.text.split()) for p in found) for query in queries[:5])


async def test_every_client_waits_for_its_answer() -> None:
    live = most = 0

    async def ask(query: str) -> None:
        nonlocal live, most
        live += 1
        most = max(live, most)
        await asyncio.sleep(0.02)
        live -= 1

    found = await clients.load(ask, clients.cycled(["a", "b"]), 3, 0.3, time.process_time)
    assert (most, live, found["clients"]) == (3, 0, 3)
    assert 20 <= found["p50_ms"] <= found["p99_ms"]
    assert found["per_s"] <= 3 / 0.02
    assert found["cpu_ms"] > 0
    assert json.dumps(found)


def test_the_processor_time_of_another_process() -> None:
    before = clients.cpu_of(os.getpid())
    while time.process_time() < before + 0.1:
        pass
    assert clients.cpu_of(os.getpid()) >= before + 0.05
