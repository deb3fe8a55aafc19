"""Searches with retriever.web=searxng, against a loopback stand-in for the service: priced, and replaced by vdb where
it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgrpo.core.types import Exit, Passage, RewardResult
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.run.equipment import Equipment
from tests import builders
from tests.environments.scripted import ScriptedEngine, renderer
from tests.retrieval.server import Server, say
from tests.runners import search_runner

CORPORA = {
    "vdb": [Passage(id="v1", text="Castin was born in Roka."), Passage(id="v2", text="Castin likes plums.")],
    "web": [Passage(id="w1", text="A page that the task brought along: founded Velmor.")],
}
FOUND = {
    "results": [
        {"url": "http://x.test/velmor", "title": "Velmor", "content": "Velmor was founded by Castin."},
        {"url": "http://x.test/tours", "title": "Tours", "content": "Tours of Velmor are popular."},
    ],
    "unresponsive_engines": [],
}
SCRIPT = (
    '<search retriever="web">founded Velmor</search>',
    '<search retriever="web">born Castin</search>',
    '<search retriever="vdb">likes Castin</search>',
    "<answer>Roka [R2Q1D1]</answer>",
)


def config(base_url: str) -> dict[str, Any]:
    web = {"name": "searxng", "base_url": base_url, "retries": 0}
    return {
        "task": {"name": "almanac"},
        "environment": {"name": "search"},
        "retriever": {"name": "embedded", "web": web},
        "tools": {},
    }


async def test_web_is_searched_priced_and_served_by_vdb_where_it_fails() -> None:
    async with Server(say(FOUND), say("down", "503 Service Unavailable")) as stand_in:
        equipment = Equipment(config(stand_in.url.removesuffix("/retrieve")), CORPORA)
        engine = ScriptedEngine(SCRIPT, max_context=10_000)
        runner = search_runner(
            engine=engine,
            renderer=renderer(),
            retrievers=equipment.retrievers,
            evidence=HeuristicEvidence(),
            top_k=2,
            evidence_plateau_min_gain=None,
            show_search_evaluation=False,
        )
        task = builders.task("Where was the founder of Velmor born?", "Roka", id="t1")
        episode = await runner.run(task, sample_index=0, stream="test", sampling=SamplingParams(max_tokens=100))
        assert stand_in.requests == [{"q": q, "format": "json"} for q in ("founded Velmor", "born Castin")]
        for part in equipment.closing:
            await part.close()
    m = episode.metrics
    assert (episode.exit, episode.failure) == (Exit.ANSWERED, None)
    assert (m["web_searches"], m["vdb_searches"], m["web_served"], m["vdb_served"]) == (2.0, 1.0, 1.0, 2.0)
    assert [(r.result_ids, r.detail) for r in episode.tool_records] == [
        (("http://x.test/velmor", "http://x.test/tours"), ""),
        (("v1", "v2"), "web failed: http_500"),
        (("v2", "v1"), ""),
    ]
    assert "w1" not in episode.retrieved_ids  # the chosen web takes the place of the task's own
    graded = RewardResult(total=1.0, terms={}, dimensions={}, correctness=1.0)
    row = SEARCH_FIGURES.row(episode, graded, SEARCH_FIGURES.priced({"web": 0.07}))
    assert row["cost"] == pytest.approx(2 * 0.07 + 2 * 0.01)  # who served in its place is paid for too


def test_demonstrations_never_search_the_open_web() -> None:
    equipment = Equipment(config("http://localhost:1"), CORPORA)
    shown = equipment.over(CORPORA)["retrievers"]
    assert [row.id for row in asyncio.run(shown["web"].search("founded Velmor", top_k=1))] == ["w1"]
