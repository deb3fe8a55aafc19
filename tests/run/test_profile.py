"""What is observed of the parts of a profiled run, and the table of where its time went."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from agentgrpo.core.stages import Stage, StageClock
from agentgrpo.core.types import Passage
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.records.screen import Screen
from agentgrpo.retrieval.base import Retriever
from agentgrpo.run.profile import observed, report_profile

KEY = SeedKey("train/0", "t", 0, 0)


class Steps:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10**9
        return self.now


class OneRetriever:
    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        return [Passage(id=query, text=str(top_k))]

    async def close(self) -> None:
        raise RuntimeError("closed")


def engine() -> ScriptedEngine:
    def encode(text: str) -> Sequence[int]:
        return [ord(c) for c in text]

    return ScriptedEngine(encode=encode, decode=lambda ids: "".join(map(chr, ids)), script=lambda key, context: "hello")


async def test_an_observed_engine_is_the_engine() -> None:
    """Every member of the protocol, and what else it has, is the engine's own; `generate` is counted as well."""
    clock, plain = StageClock(now_ns=Steps()), engine()
    watched = observed("engine", plain, clock)
    assert watched is not plain
    for name in ("release", "score", "load_weights", "close", "trainable", "max_context"):
        assert getattr(watched, name) == getattr(plain, name)
    with clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION,)):
        assert await watched.generate((1,), SamplingParams(), KEY) == await plain.generate((1,), SamplingParams(), KEY)
    assert {k: v for k, v in clock.lap().items() if v} == {"total": 5.0, "generation": 1.0, "queue": 2.0, "other": 2.0}


async def test_each_retriever_of_a_mapping_is_observed() -> None:
    clock = StageClock(now_ns=Steps())
    retrievers: dict[str, Retriever] = observed("retriever", {"vdb": OneRetriever()}, clock)
    with clock.stage(Stage.QUEUE, calls_first=(Stage.TOOLS,)):
        assert await retrievers["vdb"].search("q", top_k=3) == [Passage(id="q", text="3")]
    assert clock.lap()["tools"] == 1.0
    with pytest.raises(RuntimeError, match="closed"):
        await retrievers["vdb"].close()


def test_other_parts_are_left_alone() -> None:
    part = object()
    assert observed("judge", part, StageClock()) is part
    assert observed("reranker", None, StageClock()) is None


def row(total: float, **seconds: float) -> dict[str, float]:
    return {"total": total} | {stage.value: seconds.get(stage.value, 0.0) for stage in Stage}


def test_the_table_has_the_largest_first_and_the_95th_percentile() -> None:
    rows = [row(1.0, generation=0.25, backward=0.5, other=0.25) for _ in range(18)]
    rows += [row(3.0, generation=3.0), row(9.0, generation=9.0)]
    out = io.StringIO()
    report_profile(Screen("quiet", Console(file=out, width=120)), rows)
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]
    assert cells[:3] == [
        ["generation", "0.8250", "55.0%"],
        ["backward", "0.4500", "30.0%"],
        ["other", "0.2250", "15.0%"],
    ]
    assert cells[-1] == ["total", "1.5000", "100.0%"]
    assert len(cells) == len(Stage) + 1
    assert "time of a step, mean of 20" in out.getvalue()
    assert "step time: mean 1.500 s, p95 3.000 s, longest 9.000 s" in out.getvalue()


def test_no_rows_no_table() -> None:
    out = io.StringIO()
    report_profile(Screen("quiet", Console(file=out)), [])
    assert out.getvalue() == ""
