"""What an episode can no longer pay for is told to the policy, and is nobody's failure."""

from __future__ import annotations

import logging

import pytest

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Exit, Outcome
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.services.budget import OVER_BUDGET
from tests.environments.scripted import ANSWER, HOP_1, HOP_2, ROWS, SHOWN_1, ReversingReranker, ScriptedFetcher, play

SPENT = RetrieverError("budget.per_episode.calls.web=0 is spent", kind=OVER_BUDGET)
TOLD = {
    "no web": "There is no web search here: vdb answers.",
    "web failed": "The web search failed: vdb answers.",
    "web": "The budget for web searches is spent: vdb answers them.",
    "vdb": "The budget for searches is spent. Answer now.",
    "rerank": "The budget for reranking is spent.",
    "fetch": "The budget for pages is spent.",
}


def feedback(*kinds: str) -> str:
    return "<search_feedback>\n" + "\n".join(TOLD[kind] for kind in kinds) + "\n</search_feedback>\n"


class Unpaid(ReversingReranker):
    async def rerank(self, query, passages, *, top_k):  # type: ignore[no-untyped-def]
        raise SPENT


async def test_web_is_served_by_vdb_and_the_policy_is_told(caplog: pytest.LogCaptureFixture) -> None:
    played = await play(HOP_1, ANSWER, web={"founded Velmor": SPENT})
    assert played.told == [SHOWN_1 + feedback("web")]
    m = played.episode.metrics
    assert (m["web_searches"], m["web_served"], m["vdb_served"], m["search_queries"]) == (1.0, 0.0, 1.0, 1.0)
    record = played.episode.tool_records[0]
    assert (record.arguments["served"], record.detail) == ("vdb", "web failed: over_budget")
    assert (played.episode.failure, played.episode.exit) == (None, Exit.ANSWERED)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_a_search_that_nobody_serves_finds_nothing() -> None:
    for web in ({"founded Velmor": SPENT}, {"founded Velmor": RetrieverError("503", kind="http_500")}):
        played = await play(HOP_1, web=web, vdb={**ROWS, "founded Velmor": SPENT}, max_turns=1)
        kinds = ("web" if web["founded Velmor"] is SPENT else "web failed", "vdb")
        assert played.told == ["\n<information>\nNo results.\n</information>\n" + feedback(*kinds)]
        assert played.episode.metrics["vdb_served"] == 1.0
    played = await play(HOP_2, vdb={"born Castin": SPENT}, max_turns=1)
    assert played.told == ["\n<information>\nNo results.\n</information>\n" + feedback("vdb")]
    with pytest.raises(RetrieverError, match="drip"):
        await play(HOP_1, web={"founded Velmor": SPENT}, vdb={"founded Velmor": RetrieverError("drip", kind="timeout")})


TWO = '<searches><query retriever="web">founded Velmor</query><query retriever="web">born Castin</query></searches>'


async def test_two_queries_of_a_round_are_told_and_served_as_one_is(caplog: pytest.LogCaptureFixture) -> None:
    shown = (
        SHOWN_1.removesuffix("</information>\n").replace("R1D", "R1Q1D")
        + "[R1Q2D1] Castin was born in Roka.\n</information>\n"
    )
    both: dict[str, Exception] = {"founded Velmor": SPENT, "born Castin": SPENT}
    played = await play(TWO, ANSWER, web=both)
    assert played.told == [shown + feedback("web")]
    m = played.episode.metrics
    assert (m["web_searches"], m["vdb_served"], m["web_calls"], m["vdb_calls"]) == (2.0, 2.0, 0.0, 2.0)
    assert (played.episode.failure, played.episode.exit) == (None, Exit.ANSWERED)
    played = await play(TWO, ANSWER, web=both, vdb={**ROWS, "born Castin": SPENT})
    assert played.told[0].endswith("Query 2: No results.\n</information>\n" + feedback("web", "vdb"))
    down = {
        "founded Velmor": RetrieverError("503", kind="http_500"),
        "born Castin": RetrieverError("x", kind="timeout"),
    }
    played = await play(TWO, ANSWER, web=down)
    assert played.told == [shown + feedback("web failed")]
    assert [r.detail for r in played.episode.tool_records] == ["web failed: http_500", "web failed: timeout"]
    assert sum("served by vdb" in r.message for r in caplog.records) == 2
    m = played.episode.metrics
    assert (m["web_calls"], m["vdb_calls"]) == (2.0, 2.0)


async def test_a_rerank_is_left_out() -> None:
    played = await play(HOP_1, "<rerank/>", ANSWER, reranker=Unpaid(), top_k=1)
    first = SHOWN_1.splitlines()[2]
    assert played.told == [
        f"\n<information>\n{first}\n</information>\n" + feedback("rerank"),
        "\n<search_feedback>\nThere is nothing to rerank.\n</search_feedback>\n",
    ]
    m = played.episode.metrics
    assert (m["rerank_requested"], m["rerank_calls"], m["rerank_skipped"]) == (2.0, 0.0, 2.0)
    plain = '<search retriever="web" rerank="false"> founded Velmor</search>'
    played = await play(plain, "<rerank/>", ANSWER, reranker=Unpaid())
    assert played.told[1] == "\n" + feedback("rerank")
    record = played.episode.tool_records[1]
    assert (record.name, record.outcome, record.detail) == ("rerank", Outcome.INVALID_ARGS, TOLD["rerank"])


async def test_pages_are_not_shown() -> None:
    fetcher = ScriptedFetcher({"http://o.test/": SPENT})
    played = await play("<fetch>http://o.test/</fetch>", fetcher=fetcher, max_turns=1)
    missing = "Pages not shown: 1. They failed, were shown before or are too many for one turn."
    assert played.told == [f"\n<search_feedback>\n{missing}\n{TOLD['fetch']}\n</search_feedback>\n"]
    record = played.episode.tool_records[0]
    assert (record.outcome, record.detail, record.cost) == (Outcome.INVALID_ARGS, TOLD["fetch"], 0.0)


async def test_a_call_s_price_is_in_its_record() -> None:
    prices = {"web": 0.5, "vdb": 0.25, "rerank": 0.125, "fetch": 2.0}
    fetcher = ScriptedFetcher({"http://o.test/": RetrieverError("404", kind="http_404")})
    turns = (HOP_1, HOP_2, "<rerank/>", "<fetch>http://o.test/</fetch>", ANSWER)
    played = await play(*turns, reranker=ReversingReranker(), fetcher=fetcher, call_prices=prices)
    assert [(r.name, r.cost) for r in played.episode.tool_records] == [
        ("search", 0.625),
        ("search", 0.25),
        ("rerank", 0.125),
        ("fetch", 2.0),
    ]


@pytest.mark.parametrize(("web", "cost"), [(SPENT, 0.25), (RetrieverError("x", kind="timeout"), 0.75)])
async def test_what_was_sent_is_priced(web: RetrieverError, cost: float) -> None:
    prices = {"web": 0.5, "vdb": 0.25}
    played = await play(HOP_1, ANSWER, web={"founded Velmor": web}, call_prices=prices)
    assert [r.cost for r in played.episode.tool_records] == [cost]
    assert SEARCH_FIGURES.cost(played.episode.metrics, prices) == cost
    played = await play(HOP_2, max_turns=1, vdb={"born Castin": SPENT}, call_prices=prices)
    assert [r.cost for r in played.episode.tool_records] == [0.0]
    assert SEARCH_FIGURES.cost(played.episode.metrics, prices) == 0.0
