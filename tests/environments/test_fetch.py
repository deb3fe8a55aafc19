"""Fetched pages: shown, counted, useful or not."""

import pytest

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Exit, Outcome
from tests import builders
from tests.environments.scripted import HOP_1, HOP_2, SHOWN_1, ScriptedFetcher, play

PAGE = builders.passage(
    "http://x.test/velmor", "Velmor\nwas founded " + "x" * 90, title="Velmor", url="http://x.test/velmor"
)
OTHER = builders.passage("http://o.test/", "Other", url="http://o.test/")
DOWN = RetrieverError("slow", kind="timeout")
GONE = RetrieverError("404", kind="http_4xx")


def fetcher() -> ScriptedFetcher:
    pages = {"http://x.test/velmor": PAGE, "http://x.test/velmor#a": PAGE, "http://o.test/": OTHER}
    return ScriptedFetcher(pages | {"http://down.test/": DOWN, "http://gone.test/": GONE})


async def test_a_fetched_page_is_shown_cut_under_the_label_it_has() -> None:
    played = await play(
        HOP_1,
        "<fetch>http://x.test/velmor</fetch>",
        "<answer>a [R1Q1D1]</answer>",
        fetcher=fetcher(),
        max_full_page_chars=20,
    )
    page = "[R1Q1D1] (Title: Velmor) Velmor was founded x URL: http://x.test/velmor\nPart 1 of 6."
    assert played.told == [SHOWN_1, f"\n<full_page>\n{page}\n</full_page>\n"]
    m = played.episode.metrics
    assert (m["fetched_pages"], m["useful_fetched_pages"], m["unnecessary_fetch_count"]) == (1.0, 1.0, 0.0)
    assert (m["tool_turns"], m["search_rounds"]) == (2.0, 1.0)
    assert played.turns == [(0, "search", 2), (2, None, 0)]
    record = played.episode.tool_records[1]
    assert (record.name, record.arguments, record.turn) == ("fetch", {"url": "http://x.test/velmor"}, 1)
    assert (record.outcome, record.result_ids) == (Outcome.SUCCESS, ("http://x.test/velmor",))
    assert played.episode.retrieved_ids == ("v1", "n1")


async def test_a_page_that_no_search_found_can_be_cited() -> None:
    """It has a label of its own, counts as shown, and is worth its price where it is cited."""
    turns = (HOP_1, "<fetch>http://x.test/velmor\nhttp://o.test/</fetch>", HOP_2, "<answer>a [R2Q2D1]</answer>")
    played = await play(*turns, fetcher=fetcher())
    assert "\n[R2Q2D1] Other URL: http://o.test/\n</full_page>" in played.told[1]
    assert "[R3Q1D1] Castin was born in Roka." in played.told[2]
    assert played.episode.retrieved_ids == ("v1", "n1", "http://o.test/", "c1")
    [citation] = played.episode.citations
    assert (citation.doc_id, citation.text) == ("http://o.test/", "Other")
    m = played.episode.metrics
    assert (m["fetched_pages"], m["useful_fetched_pages"], m["unnecessary_fetch_count"]) == (2.0, 1.0, 1.0)
    assert m["search_rounds"] == 2.0


async def test_a_citation_has_the_text_of_the_page_that_was_opened() -> None:
    turns = (HOP_1, "<fetch>http://x.test/velmor</fetch>", "<answer>a [R1Q1D1]</answer>")
    [citation] = (await play(*turns, fetcher=fetcher(), max_full_page_chars=20)).episode.citations
    assert (citation.doc_id, citation.text) == ("v1", "Velmor was founded by Castin. Velmor was founded x")


async def test_a_page_that_nobody_cites_is_unnecessary() -> None:
    turns = (HOP_1, "<fetch>http://x.test/velmor, http://o.test/</fetch>", "<answer>a [R1Q1D2]</answer>")
    m = (await play(*turns, fetcher=fetcher())).episode.metrics
    assert (m["fetched_pages"], m["useful_fetched_pages"], m["unnecessary_fetch_count"]) == (2.0, 0.0, 2.0)


async def test_pages_that_fail_repeat_or_are_too_many_are_told_together() -> None:
    pages = fetcher()
    first = "<fetch>http://down.test/\nhttp://x.test/velmor\nhttp://x.test/velmor#a\nhttp://gone.test/\nhttp://o.test/</fetch>"
    second = "<fetch>http://x.test/velmor#a</fetch>"
    played = await play(first, second, fetcher=pages, max_turns=2)
    assert pages.calls == [("http://down.test/", "http://x.test/velmor", "http://gone.test/")]
    missing = "They failed, were shown before or are too many for one turn.\n</search_feedback>\n"
    assert played.told[0].startswith("\n<full_page>\n[R1Q2D1] (Title: Velmor) Velmor was founded xxx")
    assert played.told[0].endswith(f"</full_page>\n<search_feedback>\nPages not shown: 4. {missing}")
    assert played.told[1] == f"\n<search_feedback>\nPages not shown: 1. {missing}"
    assert [(r.outcome, r.detail) for r in played.episode.tool_records] == [
        (Outcome.TIMEOUT, "timeout"),
        (Outcome.SUCCESS, ""),
        (Outcome.RUNTIME_ERROR, "http_4xx"),
    ]
    assert played.episode.exit is Exit.MAX_TURNS


async def test_without_a_fetcher_the_policy_is_told() -> None:
    played = await play("<fetch>http://o.test/</fetch>", max_turns=1)
    assert played.told == ["\n<search_feedback>\nPages cannot be fetched here.\n</search_feedback>\n"]
    assert [r.outcome for r in played.episode.tool_records] == [Outcome.TOOL_NOT_FOUND]
    assert played.episode.metrics["fetched_pages"] == 0.0


async def test_a_fetcher_that_raises_is_an_infrastructure_failure() -> None:
    with pytest.raises(RetrieverError, match="page fetcher: KeyError"):
        await play("<fetch>http://unknown.test/</fetch>", fetcher=fetcher())


LONG = builders.passage("http://l.test/", "one two three. " * 3 + "Castin was born in Roka.", url="http://l.test/")
"""Three parts of 30 characters: 69 in all."""


async def test_a_long_page_is_opened_in_parts_each_paid_for() -> None:
    pages = ScriptedFetcher({"http://l.test/": LONG})
    turns = ("<fetch>http://l.test/</fetch>", '<fetch part="2">http://l.test/</fetch>')
    turns += ('<fetch find="WAS born">http://l.test/</fetch>', "<fetch part=2>http://l.test/#again</fetch>")
    turns += ("<fetch part=4>http://l.test/</fetch>", "<answer>Roka [R1Q1D1]</answer>")
    played = await play(
        *turns, fetcher=pages, max_full_page_chars=30, max_turns=9, call_prices={"fetch": 0.5},
        require_sufficient_evidence_before_answer=False,
    )  # fmt: skip
    first, second = "one two three. one two three. ", "one two three. Castin was born"
    refused = "Pages not shown: 1. They failed, were shown before or are too many for one turn."
    assert played.told == [
        f"\n<full_page>\n[R1Q1D1] {first} URL: http://l.test/\nPart 1 of 3.\n</full_page>\n",
        f"\n<full_page>\n[R1Q1D1] {second} URL: http://l.test/\nPart 2 of 3.\n</full_page>\n",
        f"\n<full_page>\n[R1Q1D1] {second} URL: http://l.test/\nPart 2 of 3.\n</full_page>\n",
        f"\n<search_feedback>\n{refused}\n</search_feedback>\n",
        "\n<search_feedback>\nPages without that part or those words: 1.\n</search_feedback>\n",
    ]
    assert len(pages.calls) == 4
    m = played.episode.metrics
    assert (m["fetched_pages"], m["useful_fetched_pages"]) == (4.0, 4.0)
    assert [r.cost for r in played.episode.tool_records] == [0.5] * 4
    assert [r.arguments for r in played.episode.tool_records] == [
        {"url": "http://l.test/"},
        {"url": "http://l.test/", "part": 2},
        {"url": "http://l.test/", "find": "WAS born"},
        {"url": "http://l.test/", "part": 4},
    ]
    assert [r.num_results for r in played.episode.tool_records] == [1, 1, 1, 0]
    [citation] = played.episode.citations
    assert citation.text == f"{first} {second}"
