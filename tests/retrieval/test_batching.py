"""Batched, and the embedded retrievers that are made of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.batching import Batched
from agentgrpo.retrieval.embedded import embedded
from tests.builders import passage


class Recording:
    """Answers a query with one passage of its own and remembers what it was asked; "bad" fails, "bug" raises."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        self.batches.append((list(queries), top_k))
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(60)
        if "bug" in queries:
            raise ZeroDivisionError("1/0")
        return [RetrieverError("no", kind="garbage") if q == "bad" else [passage(q, f"about {q}")] for q in queries]


async def together(retriever: Batched, *queries: str) -> list[str]:
    rows = await asyncio.gather(*(retriever.search(q, top_k=3) for q in queries), return_exceptions=True)
    return [repr(row) if isinstance(row, BaseException) else row[0].id for row in rows]


async def test_queries_of_one_tick_are_one_batch_off_the_loop_and_equal_ones_are_asked_once() -> None:
    backend = Recording()
    retriever = Batched(backend)
    assert await together(retriever, "a", "b", "a", "c") == ["a", "b", "a", "c"]
    assert backend.batches == [(["a", "b", "c"], 3)]
    assert backend.threads == {"retriever_0"}
    await retriever.close()


async def test_rows_are_remembered_until_others_push_them_out() -> None:
    backend = Recording()
    retriever = Batched(backend, cache_size=2)
    for query in ("a", "b", "a", "c", "a", "b"):  # "c" pushes out "b", the least recently used
        assert await together(retriever, query) == [query]
    assert [queries for queries, _ in backend.batches] == [["a"], ["b"], ["c"], ["b"]]
    assert await retriever.search("a", top_k=1) != []
    assert backend.batches[-1] == (["a"], 1)  # another top_k is another row
    await retriever.close()


async def test_without_a_cache_every_query_is_asked() -> None:
    backend = Recording()
    retriever = Batched(backend, cache_size=0)
    assert [await together(retriever, "a") for _ in range(2)] == [["a"], ["a"]]
    assert backend.batches == [(["a"], 3), (["a"], 3)]
    await retriever.close()


async def test_nobody_can_change_the_row_of_another() -> None:
    retriever = Batched(Recording())
    first, second = await asyncio.gather(*(retriever.search("a", top_k=3) for _ in range(2)))
    first.clear()
    assert [p.id for p in second] == [p.id for p in await retriever.search("a", top_k=3)] == ["a"]
    await retriever.close()


async def test_a_failed_row_fails_alone_and_is_not_remembered() -> None:
    backend = Recording()
    retriever = Batched(backend)
    assert await together(retriever, "a", "bad") == ["a", "RetrieverError('no')"]
    assert await together(retriever, "bad", "a") == ["RetrieverError('no')", "a"]
    assert [queries for queries, _ in backend.batches] == [["a", "bad"], ["bad"]]
    await retriever.close()


async def test_an_error_inside_a_backend_is_attributed_to_it() -> None:
    retriever = Batched(Recording())
    assert await together(retriever, "bug") == [
        "RetrieverError('retriever: ZeroDivisionError: 1/0 (test_batching.py:35 in search_batch)')"
    ]
    await retriever.close()


async def test_a_query_that_a_backend_cannot_take_fails_alone() -> None:
    backend = Recording()
    retriever = Batched(backend)
    bug = "RetrieverError('retriever: ZeroDivisionError: 1/0 (test_batching.py:35 in search_batch)')"
    assert await together(retriever, "a", "b", "bug", "c") == ["a", "b", bug, "c"]
    assert [queries for queries, _ in backend.batches] == [
        ["a", "b", "bug", "c"],
        ["a", "b"],
        ["bug", "c"],
        ["bug"],
        ["c"],
    ]
    await retriever.close()


@pytest.mark.parametrize("kind, calls", [(None, 8), ("http_4xx", 8), ("transport", 1), ("timeout", 1)])
async def test_a_backend_that_answers_nobody_is_not_asked_for_each(kind: str | None, calls: int) -> None:
    class Dead:
        calls = 0

        def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
            self.calls += 1
            raise RetrieverError("no", kind=kind)

    backend = Dead()
    retriever = Batched(backend)
    assert await together(retriever, *map(str, range(64))) == ["RetrieverError('no')"] * 64
    assert backend.calls == calls
    await retriever.close()


async def test_batches_are_bounded() -> None:
    backend = Recording()
    retriever = Batched(backend, max_batch=2)
    assert await together(retriever, *"abcde") == list("abcde")
    assert [queries for queries, _ in backend.batches] == [["a", "b"], ["c", "d"], ["e"]]
    await retriever.close()


async def test_a_cancelled_search_disturbs_no_other() -> None:
    backend = Recording()
    retriever = Batched(backend)
    backend.gate.clear()
    leaver, stayer = (asyncio.create_task(retriever.search(q, top_k=3)) for q in "ab")
    await asyncio.sleep(0.02)
    leaver.cancel()
    late = asyncio.create_task(retriever.search("c", top_k=3))
    await asyncio.sleep(0.02)
    backend.gate.set()
    assert [p.id for p in await stayer + await late] == ["b", "c"]
    assert [queries for queries, _ in backend.batches] == [["a", "b"], ["c"]]
    await retriever.close()


def test_one_retriever_serves_consecutive_loops() -> None:
    backend = Recording()
    retriever = Batched(backend, cache_size=0)
    assert [asyncio.run(together(retriever, "a", "b")) for _ in range(3)] == [["a", "b"]] * 3
    assert backend.batches == [(["a", "b"], 3)] * 3
    asyncio.run(retriever.close())


def test_a_negative_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="cache_size=-1; 0"):
        Batched(Recording(), cache_size=-1)


# --- embedded

VDB = [passage("v1", "Velmor was founded by Tam."), passage("v2", "Castin sells tea."), passage("v3", "Tea from Roka.")]
WEB = [passage("w1", "The price of Velmor is now 45 dollars."), passage("w2", "Velmor has fans.")]


async def ids(retrievers: Mapping[str, Retriever], name: str, query: str) -> list[str]:
    return [p.id for p in await retrievers[name].search(query, top_k=2)]


async def test_split_searches_vdb_by_meaning_and_web_by_words() -> None:
    retrievers = embedded(corpora={"vdb": VDB, "web": WEB})
    assert sorted(retrievers) == ["vdb", "web"]
    assert (await ids(retrievers, "vdb", "founders of Velmor"))[0] == "v1"
    assert await ids(retrievers, "web", "price Velmor") == ["w1", "w2"]
    assert await ids(retrievers, "web", "founding") == []


async def test_fused_scores_by_reciprocal_rank_of_both_indexes() -> None:
    retrievers = embedded(corpora={"vdb": VDB}, mode="fused")
    assert list(retrievers) == ["vdb"]
    [first, _] = await retrievers["vdb"].search("founded Velmor", top_k=2)
    assert (first.id, first.score) == ("v1", 0.0327869)  # 2/61: first in both


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"corpora": {"vdb": VDB}, "mode": "fuse"}, "mode='fuse'; allowed are split and fused. Did you mean 'fused'?"),
        ({"corpora": {"web": WEB}}, "corpora ['web']; allowed are vdb (required) and web"),
        ({"corpora": {"vdb": VDB, "net": WEB}}, "corpora ['net', 'vdb']; allowed are vdb"),
    ],
)
def test_embedded_names_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        embedded(**arguments)  # type: ignore[arg-type]
    assert message in str(e.value)


def test_the_preset_holds_every_key_with_its_default() -> None:
    preset = yaml.safe_load((Path(__file__).parents[2] / "configs/retriever/embedded.yaml").read_text())
    assert (preset.pop("name"), preset.pop("defaults")) == ("embedded", ["_self_", {"web": "none"}])
    assert {**preset, "web": None} == embedded.__kwdefaults__
