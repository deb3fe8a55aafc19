"""What of the results is shown: repetition, deduplication, cache, web served by vdb, reranking."""

import logging

import pytest

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Outcome, Passage
from agentgrpo.engines.base import SamplingParams
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    HOP_1,
    HOP_2,
    ROWS,
    SHOWN_1,
    SHOWN_2,
    ReversingReranker,
    ScriptedEngine,
    ScriptedJudge,
    ScriptedRetriever,
    play,
    renderer,
)
from tests.runners import search_runner


async def test_a_repeated_query_gets_feedback_and_no_results() -> None:
    again = '<search rerank="true" retriever="web">FOUNDED   velmor</search>'
    played = await play(HOP_1, again, ANSWER)
    pointer = "\n<search_feedback>\nAlready searched, see [R1Q1D1] [R1Q1D2].\n</search_feedback>\n"
    assert played.told == [SHOWN_1, pointer]
    assert played.web is not None
    assert len(played.web.calls) == 1
    assert played.turns == [(0, "search", 2), (2, None, 0)]
    m = played.episode.metrics
    assert (m["repeated_search_queries"], m["repeated_query_ratio"], m["search_rounds"]) == (1.0, 0.5, 1.0)
    assert (m["search_queries"], m["web_searches"], m["rerank_requested"], m["tool_turns"]) == (1.0, 1.0, 1.0, 2.0)
    record = played.episode.tool_records[1]
    assert (record.outcome, record.detail) == (Outcome.INVALID_ARGS, "repeated")


async def test_a_repeated_query_that_had_found_nothing_is_told_so() -> None:
    played = await play("<search>x</search>", "<search>x</search>", max_turns=2)
    feedback = "\n<search_feedback>\nAlready searched, without results.\n</search_feedback>\n"
    assert played.told[1] == feedback


async def test_the_same_words_may_be_asked_of_the_other_retriever() -> None:
    old = builders.passage("old", "Years ago the price of Velmor was 20 dollars.")
    new = builders.passage("new", "The price of Velmor is now 45 dollars.")
    played = await play(
        "<search>price Velmor</search>",
        '<search retriever="web">price Velmor</search>',
        "<answer> 45 [R2Q1D1]</answer>",
        vdb={"price Velmor": (old,)},
        web={"price Velmor": (old, new)},
    )
    assert played.told[1] == "\n<information>\n[R2Q1D1] The price of Velmor is now 45 dollars.\n</information>\n"
    assert played.episode.metrics["repeated_search_queries"] == 0.0
    assert played.episode.citations[0].doc_id == "new"


async def test_a_round_that_finds_only_known_documents_points_to_them_and_gets_no_label() -> None:
    played = await play(HOP_1, "<search>chatter</search>", "<search>born Castin</search>", ANSWER)
    assert played.told == [
        SHOWN_1,
        "\n<information>\nNothing new, see [R1Q1D2].\n</information>\n",
        SHOWN_2,
    ]
    m = played.episode.metrics
    assert (m["duplicate_search_results_removed"], m["search_rounds"]) == (2.0, 3.0)
    assert (m["evidence_sufficient_rounds"], m["evidence_insufficient_rounds"]) == (2.0, 1.0)


async def test_documents_are_shown_again_where_deduplication_is_off() -> None:
    played = await play("<search>chatter</search>", HOP_1, ANSWER, deduplicate_search_results=False)
    assert played.told[1].count("Tours of Velmor are popular.") == 1
    assert "[R2Q1D2] Tours" in played.told[1]
    assert played.episode.metrics["duplicate_search_results_removed"] == 0.0
    assert played.episode.retrieved_ids == ("n1", "v1")


async def test_deduplication_by_page_title_and_beginning_where_there_is_no_id() -> None:
    def found(text: str, **named: str) -> Passage:
        return builders.passage("", text, **named)

    long = "x" * 512
    rows = {
        "a": (found("one", url="u#1"), found("two", title="t"), found(long + "1")),
        "b": (
            found("three", url="u#2"),
            found("four", title="t"),
            found(long + "2"),
            found("five", url="v", title="t"),
        ),
    }
    played = await play("<search>a</search>", "<search>b</search>", ANSWER, vdb=rows)
    assert played.told[1] == "\n<information>\n[R2Q1D1] (Title: t) five URL: v\n</information>\n"
    assert played.episode.metrics["duplicate_search_results_removed"] == 3.0
    assert played.episode.retrieved_ids == ("u", "t", long, "v")


async def test_the_cache_answers_what_the_serving_retriever_has_been_asked() -> None:
    # without a web retriever both queries go to vdb, which is asked once; the policy asked two different things
    played = await play(HOP_1, "<search>founded Velmor</search>", ANSWER, web=None)
    assert played.vdb.calls == [("founded Velmor", 5)]
    m = played.episode.metrics
    assert (m["search_cache_hits"], m["search_queries"], m["repeated_search_queries"]) == (1.0, 2.0, 0.0)
    assert [r.cached for r in played.episode.tool_records] == [False, True]


async def test_candidates_for_the_reranker_serve_the_plain_query_from_the_cache_but_not_the_other_way() -> None:
    reranked, plain = '<search rerank="true">all</search>', "<search>all</search>"
    options = {"reranker": ReversingReranker(), "top_k": 2, "rerank_candidates": 3}
    played = await play(reranked, plain, ANSWER, **options)
    assert played.vdb.calls == [("all", 3)]
    assert played.episode.metrics["search_cache_hits"] == 1.0
    played = await play(plain, reranked, ANSWER, **options)
    assert played.vdb.calls == [("all", 2), ("all", 3)]
    assert played.episode.metrics["search_cache_hits"] == 0.0


def told(sentence: str) -> str:
    return f"<search_feedback>\n{sentence}\n</search_feedback>\n"


async def test_web_unconfigured_is_served_by_vdb_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    played = await play(HOP_1, ANSWER, web=None)
    m = played.episode.metrics
    assert (m["web_searches"], m["vdb_searches"], m["web_served"], m["vdb_served"]) == (1.0, 0.0, 0.0, 1.0)
    assert played.told == [SHOWN_1 + told("There is no web search here: vdb answers.")]
    assert "no web retriever is configured" in caplog.text


@pytest.mark.parametrize(
    "error, kind", [(RetrieverError("503", kind="http_500"), "http_500"), (ValueError("bad"), "RetrieverError")]
)
async def test_web_failing_is_served_by_vdb_and_counted(
    error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    played = await play(HOP_1, ANSWER, web={"founded Velmor": error})
    m = played.episode.metrics
    assert (m["web_searches"], m["vdb_searches"], m["web_served"], m["vdb_served"]) == (1.0, 0.0, 0.0, 1.0)
    assert played.told == [SHOWN_1 + told("The web search failed: vdb answers.")]
    record = played.episode.tool_records[0]
    assert (record.arguments["served"], record.detail) == ("vdb", f"web failed: {kind}")
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert f"web search failed ({kind}), served by vdb" in caplog.text


async def test_a_web_failure_is_not_cached() -> None:
    web = {"founded Velmor": RetrieverError("503", kind="http_500")}
    played = await play(HOP_1, '<search retriever="web">founded Velmor</search>', ANSWER, web=web)
    assert played.web is not None
    assert len(played.web.calls) == 2
    assert len(played.vdb.calls) == 1


async def test_vdb_failing_is_an_infrastructure_failure() -> None:
    broken = {"founded Velmor": RetrieverError("drip", kind="timeout")}
    vdb = ScriptedRetriever(broken)
    agent = search_runner(
        engine=ScriptedEngine(["<search>founded Velmor</search>"]),
        renderer=renderer(),
        retrievers={"vdb": vdb, "web": ScriptedRetriever(ROWS)},
        evidence=ScriptedJudge(),
    )
    with pytest.raises(RetrieverError, match="drip") as caught:
        await agent.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    assert (caught.value.kind, len(vdb.calls)) == ("timeout", 1)  # retries are the retriever's own business
    with pytest.raises(RetrieverError, match="drip"):
        await play(HOP_1, vdb=broken, web=broken)


async def test_reranking_comes_before_labels() -> None:
    reranker = ReversingReranker()
    played = await play(HOP_1, ANSWER, web={"founded Velmor": ROWS["all"]}, reranker=reranker, top_k=2)
    assert played.web is not None
    assert played.web.calls == [("founded Velmor", 20)]
    assert reranker.calls == [("founded Velmor", ("v1", "c1", "n1"), 2)]
    assert played.told == [
        "\n<information>\n[R1Q1D1] Tours of Velmor are popular.\n[R1Q1D2] Castin was born in Roka.\n</information>\n"
    ]
    m = played.episode.metrics
    assert (m["rerank_requested"], m["rerank_calls"], m["rerank_skipped"]) == (1.0, 1.0, 0.0)


async def test_one_result_is_not_reranked() -> None:
    reranker = ReversingReranker()
    played = await play('<search rerank="true">chatter</search>', ANSWER, reranker=reranker)
    m = played.episode.metrics
    assert (reranker.calls, m["rerank_requested"], m["rerank_skipped"]) == ([], 1.0, 1.0)


async def test_rerank_as_an_action_reorders_what_was_retrieved_under_its_labels() -> None:
    reranker = ReversingReranker()
    played = await play(HOP_2, "<search>founded Velmor</search>", "<rerank/>", ANSWER, reranker=reranker, top_k=2)
    assert reranker.calls == [("Where was the founder of Velmor born?", ("c1", "n1", "v1"), 2)]
    assert played.told[2] == (
        "\n<information>\n[R2Q1D1] (Title: Velmor) Velmor was founded by Castin. URL: http://x.test/velmor#history\n"
        "[R1Q1D2] Tours of Velmor are popular.\n</information>\n"
    )
    m = played.episode.metrics
    assert (m["search_rounds"], m["rerank_calls"], m["rerank_requested"], m["tool_turns"]) == (2.0, 1.0, 1.0, 3.0)
    assert [t for t in played.turns if t[1]] == [(0, "search", 2), (1, "search", 1)]
    record = played.episode.tool_records[2]
    assert (record.name, record.outcome, record.result_ids) == ("rerank", Outcome.SUCCESS, ("v1", "n1"))


async def test_rerank_as_an_action_with_nothing_to_rerank() -> None:
    played = await play("<rerank/>", HOP_1, "<rerank/>", ANSWER)
    nothing = "\n<search_feedback>\nThere is nothing to rerank.\n</search_feedback>\n"
    assert (played.told[0], played.told[2]) == (nothing, nothing)
    assert played.episode.metrics["rerank_skipped"] == 3.0
    played = await play("<search>chatter</search>", "<rerank/>", ANSWER, reranker=ReversingReranker())
    assert (played.told[1], played.episode.metrics["rerank_skipped"]) == (nothing, 1.0)
